"""The clock of the runtime: the protocol itself has none, and gets the time as an argument."""

from __future__ import annotations

import functools
import time

now = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds on the boot-time clock: monotonic, and it goes on while the host sleeps."""
