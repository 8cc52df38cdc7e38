"""What the launcher's endpoint asks of the supervisor behind it; apart from ``fence``, which takes long to import."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from consensus import KeyRing

__all__ = ["Fate", "Office"]


class Fate(Enum):
    """What became of an accused process."""

    REAPED = "reaped"
    """Killed now."""
    GONE = "gone"
    """Ended before, or its number belongs to a later lifetime."""
    UNKNOWN = "unknown"
    """Never a worker of this launcher."""
    STUCK = "stuck"
    """Killed, but the kernel has not let go of it."""


class Office(Protocol):
    """Who answers: the supervisor."""

    @property
    def job(self) -> str:
        """The name that callers must know."""
        ...

    @property
    def ring(self) -> KeyRing:
        """The keys of which callers must have one."""
        ...

    async def fence(self, pid: int, member: str, reason: str) -> Fate:
        """Kill a worker and wait, within a deadline, until it is reaped."""
        ...

    def announced(self, pid: int, member: str, address: str, epoch: int) -> bool:
        """Take note; False for a pid that is no running worker."""
        ...

    def report(self) -> dict[str, Any]:
        """What ``GET /workers`` shows."""
        ...
