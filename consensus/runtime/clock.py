"""The clock of everything that runs: the protocol itself has none, and is told the time."""

from __future__ import annotations

import time

__all__ = ["now"]


def now() -> float:
    """Seconds on the boot-time clock: monotonic, and running on while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
