"""How long an accelerator that fails again and again is left alone.

One that starts well and fails in its first operations would interrupt every call; where calls wait for it, no call would ever
finish. So the first failure costs one call, and after each further one Gloo carries everything, for twice as long each time.
"""

from __future__ import annotations

import time

FIRST, LONGEST = 1.0, 64.0
"""Seconds after the second failure in a row; seconds at most."""
LONG = 60.0
"""Seconds after which a failure is no longer one in a row: the accelerator had worked for that long."""


class Backoff:
    """Of one process. Owned by whoever builds groups."""

    def __init__(self) -> None:
        self._failures = 0
        """In a row."""
        self._until = 0.0

    @property
    def left(self) -> float:
        """Seconds from now on in which the accelerator is not used."""
        return max(0.0, self._until - time.monotonic())

    def failed(self, after: float) -> None:
        """Its operations failed, so many seconds after its start."""
        self._failures = 1 if after > LONG else self._failures + 1
        if self._failures > 1:
            self._until = time.monotonic() + min(FIRST * 2.0 ** min(self._failures - 2, 10), LONGEST)
