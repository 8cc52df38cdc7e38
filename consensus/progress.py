"""Where a member's data plane is: the few numbers that ride on pings, so that peers know whom they wait for, and what binds
the own agent from this moment on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_WIRE = struct.Struct("<QQd")


@dataclass(frozen=True, slots=True)
class Progress:
    """``finished``: the last call that ended; ``current``: the call in progress, 0 for none.

    For the own agent alone, these do not travel: ``busy``, whether operations of the call are under way; ``leaving``, whether
    others may have read by now that this member leaves (once True it stays so).

    ``since``: when ``current`` was entered, on this host's boot-time clock. Clocks of different hosts have nothing in
    common, so what travels is how long that has been.
    """

    finished: int
    current: int
    since: float = 0.0
    busy: bool = False
    leaving: bool = False

    def pack(self, now: float) -> bytes:
        """For a ping sent at ``now``; nothing where there is nothing to tell."""
        if self == NOWHERE:
            return b""
        waited = max(0.0, now - self.since) if self.current else 0.0
        return _WIRE.pack(self.finished, self.current, waited)

    @classmethod
    def unpack(cls, data: bytes, now: float) -> Progress | None:
        """What arrived at ``now``, with ``since`` on the own clock; None for anything that is no progress."""
        if len(data) != _WIRE.size:
            return None
        finished, current, waited = _WIRE.unpack(data)
        if not 0.0 <= waited < float("inf"):
            return None
        return cls(finished, current, now - waited)


NOWHERE = Progress(0, 0)
"""Before the first call."""
