"""The clock of everything that runs: the protocol itself has none, and is told the time."""

from __future__ import annotations

import functools
import time

now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds on the boot-time clock: monotonic, and running on while the host sleeps."""
