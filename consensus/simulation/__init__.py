"""The protocol without sockets: many machines, one virtual clock, one seed, faults on demand, exact replay.

``World`` is time, processes and a script API; ``draw(seed, menu)`` makes a random ``Scenario``, ``play`` runs one: a safety
phase, then a healed network, and a ``Verdict``.
"""

from .clock import Clock
from .faults import Faults, Spread
from .history import draw
from .host import Host
from .judgement import Outcome, Verdict, judge, living, reason_to_block, settled
from .menu import Menu
from .observer import Observer
from .plane import MakePlane, SimulatedPlane, StubPlane
from .play import Result, play, prepare
from .scenario import Event, Scenario, ScriptError
from .store import Character, SimulatedStore
from .trap import Trap
from .verbs import perform
from .world import World

__all__ = [
    "Character",
    "Clock",
    "Event",
    "Faults",
    "Host",
    "MakePlane",
    "Menu",
    "Observer",
    "Outcome",
    "Result",
    "Scenario",
    "ScriptError",
    "SimulatedPlane",
    "SimulatedStore",
    "Spread",
    "StubPlane",
    "Trap",
    "Verdict",
    "World",
    "draw",
    "judge",
    "living",
    "perform",
    "play",
    "prepare",
    "reason_to_block",
    "settled",
]
