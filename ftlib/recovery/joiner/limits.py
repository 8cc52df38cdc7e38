"""Limits of a recovery: memory and patience, and bytes a second (a token bucket)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...common.threads import SYSTEM, Threads


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """What a joiner may use."""

    patience: float
    """Seconds that the others may have to wait for one thing."""
    pending: int
    """Bytes of averages that may wait to be replayed; above it the others wait."""
    live: bool = True
    """False if this member must not follow at all."""


_LOOK = 0.5
"""Maximum seconds of one sleep."""
_BURST = 0.25
"""Seconds' worth of bytes that the bucket holds."""


class RateLimit:
    """Bytes a second, for all threads that share it. Thread-safe."""

    def __init__(self, rate: float, threads: Threads = SYSTEM) -> None:
        """``rate``: bytes a second; 0 for no limit."""
        self.rate = rate
        self._threads = threads
        self._lock = threads.lock()
        self._free = threads.now()
        """When the bucket had, or will have, room for all bytes taken so far."""

    def piece(self, most: int) -> int:
        """The number of bytes that is best taken at a time, at most ``most``."""
        return most if not self.rate else max(1, min(most, int(self.rate * _BURST)))

    def take(self, count: int, go_on: Callable[[], bool]) -> bool:
        """Wait until ``count`` bytes may pass. False if ``go_on``, polled at least every second, returned False meanwhile."""
        if not self.rate:
            return True
        with self._lock:
            # After a pause the bucket holds no more than this.
            begin = self._free = max(self._free, self._threads.now() - _BURST)
            self._free += count / self.rate
        while (wait := begin - self._threads.now()) > 0:
            if not go_on():
                return False
            self._threads.sleep(min(wait, _LOOK))
        return True
