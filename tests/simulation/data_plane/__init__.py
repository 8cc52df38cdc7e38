"""Training processes in a simulated world: the real data plane, with integers for gradients and everything else made up.

What ``consensus.simulation`` does for views, this does for steps: every history is checked for the promises that a step is
averaged over one set of members at every survivor, and that none is lost or repeated.
"""

from .ambush import Ambush, Ambushes
from .groups.pace import Pace
from .judging.promises import Promises
from .parts.accelerator import HEALTHY, Accelerators, Equipment
from .peers.habits import Habits
from .play import (
    POLICIES_OF_REPLICAS,
    accelerated,
    compressing_sharded,
    declining,
    declining_late,
    declining_sharded,
    interrupted_sharded,
    mixing,
    mixing_sharded,
    opening,
    play,
    play_plot,
    plotted_history,
    random_history,
    restarting_history,
    settings,
    sharded,
    sharded_history,
)
from .plot import Plot, Script, Step
from .trainers import Trainers

__all__ = [
    "HEALTHY",
    "POLICIES_OF_REPLICAS",
    "Accelerators",
    "Ambush",
    "Ambushes",
    "Equipment",
    "Habits",
    "Pace",
    "Plot",
    "Promises",
    "Script",
    "Step",
    "Trainers",
    "accelerated",
    "compressing_sharded",
    "declining",
    "declining_late",
    "declining_sharded",
    "interrupted_sharded",
    "mixing",
    "mixing_sharded",
    "opening",
    "play",
    "play_plot",
    "plotted_history",
    "random_history",
    "restarting_history",
    "settings",
    "sharded",
    "sharded_history",
]
