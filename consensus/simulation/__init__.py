"""The protocol without sockets: many machines, one virtual clock, one seed, faults on demand, exact replay."""

from .faults import Faults
from .world import Host, World

__all__ = ["Faults", "Host", "World"]
