"""The protocol without sockets: many machines, one virtual clock, one seed, faults on demand, exact replay.

``World`` is time, processes and a script API; ``judged(world)`` has the invariants checked after every event.
``draw(seed, profile)`` makes a random ``Scenario``; ``play`` runs one: a safety phase, a healed network, a ``Verdict``.
"""

from .invariants.checkers import judged
from .invariants.judgement import Outcome, Verdict, judge, living, reason_to_block, settled
from .script.commands import perform
from .script.fault_profile import FaultProfile
from .script.history import draw
from .script.play import Result, play, prepare
from .script.scenario import Event, Scenario, ScriptError
from .world.faults import Failpoint, Faults, Spread
from .world.host import Host, MakePlane, SimulatedPlane, StubPlane
from .world.observer import Observer
from .world.store import Character, SimulatedStore
from .world.timeline import Clock
from .world.world import World

__all__ = [
    "Character",
    "Clock",
    "Event",
    "Failpoint",
    "FaultProfile",
    "Faults",
    "Host",
    "MakePlane",
    "Observer",
    "Outcome",
    "Result",
    "Scenario",
    "ScriptError",
    "SimulatedPlane",
    "SimulatedStore",
    "Spread",
    "StubPlane",
    "Verdict",
    "World",
    "draw",
    "judge",
    "judged",
    "living",
    "perform",
    "play",
    "prepare",
    "reason_to_block",
    "settled",
]
