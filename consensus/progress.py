"""Where a member's data plane is: numbers that travel with pings, so that peers know which member they wait for, and facts
that bind the member's own agent at once.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_WIRE = struct.Struct("<QQdQ")


@dataclass(frozen=True, slots=True)
class Progress:
    """``finished``: the last call that ended; ``current``: the call in progress, 0 for none. ``inner``: steps that this member
    has done by itself, outside of calls or in an open one: it does not hang while their number rises.

    Two fields are for the own agent and are not sent: ``busy``, whether operations of the call are under way; ``leaving``,
    whether others may have learned by now that this member leaves (once True it stays True).

    ``since``: when ``current`` was entered, or without a call when the last of the ``inner`` steps was done, on this host's
    boot-time clock. Clocks of different hosts have nothing in common, so the time since then is sent instead.
    """

    finished: int
    current: int
    since: float = 0.0
    busy: bool = False
    leaving: bool = False
    inner: int = 0

    def pack(self, now: float) -> bytes:
        """The bytes for a ping sent at ``now``; empty before the first call."""
        if self == NOWHERE:
            return b""
        waited = max(0.0, now - self.since) if self.current or self.inner else 0.0
        return _WIRE.pack(self.finished, self.current, waited, self.inner)

    @classmethod
    def unpack(cls, data: bytes, now: float) -> Progress | None:
        """The progress in ``data``, received at ``now``, with ``since`` on the own clock; None if ``data`` is malformed."""
        if len(data) != _WIRE.size:
            return None
        finished, current, waited, inner = _WIRE.unpack(data)
        if not 0.0 <= waited < float("inf"):
            return None
        return cls(finished, current, now - waited, inner=inner)


NOWHERE = Progress(0, 0)
"""Before the first call."""
