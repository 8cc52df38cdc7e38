"""The protocol without sockets: many machines, one virtual clock, one seed, faults on demand, exact replay."""

from .faults import Faults
from .host import Host
from .observer import Observer
from .plane import MakePlane, SimulatedPlane, StubPlane
from .world import World

__all__ = ["Faults", "Host", "MakePlane", "Observer", "SimulatedPlane", "StubPlane", "World"]
