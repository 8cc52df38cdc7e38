"""The counts behind ``FTLib.metrics``, kept from one lifetime of a worker to the next; durations go into buckets."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

from .time_use import TimeUse

PAUSES = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds for pauses: a crash costs tens of milliseconds, silence about ``exclude_after``."""

CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""The same for calls, waiting for slower workers included."""


class Tally:
    """A count, a sum, a maximum and a histogram of durations, for less than a microsecond each.

    There is one writer. Readers may see a duration that is only partly counted.
    """

    __slots__ = ("_bounds", "_counts", "count", "last", "maximum", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds``: ascending upper bounds in seconds, inclusive."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.total = 0.0
        self.last = 0.0
        self.maximum = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.count += 1
        self.total += seconds
        self.last = seconds
        self.maximum = max(self.maximum, seconds)

    def as_dict(self) -> dict[str, Any]:
        """``count``, ``sum``, ``last``, ``max`` and ``buckets``: pairs ``[bound, number of durations up to that bound]``."""
        reached, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            reached += count
            buckets.append([bound, reached])
        return {"count": self.count, "sum": self.total, "last": self.last, "max": self.maximum, "buckets": buckets}


@dataclass(slots=True)
class Counters:
    """Plain counts; each is written by one thread."""

    time_use: TimeUse
    """Where the time went."""
    calls: int = 0
    accelerated: int = 0
    """Calls whose large buckets went by the accelerators of all members."""
    alone: int = 0
    """Calls of this member alone: nothing was sent."""
    redone: int = 0
    adopted: int = 0
    donated: int = 0
    views: int = 0
    rebuild_failures: int = 0
    vetoed: int = 0
    """Averages that no member applied because they held inf or nan."""
    bytes_averaged: int = 0
    """Bytes of tensors in finished calls."""
    pauses: Tally = field(default_factory=lambda: Tally(PAUSES))
    """From a freeze to the activation that ended it."""
    call_seconds: Tally = field(default_factory=lambda: Tally(CALLS))
    """From entering a call to its result, view changes included."""
    rolled_back: int = 0
    """Attempts at units that were undone."""
    last_wait: float = 0.0
    """Seconds from a call's entry here to the last activation, its cause included; 0 if no call was in progress."""
    rejoins: int = 0
    """Lifetimes after the first."""
    state_loads: int = 0
    state_bytes: int = 0
    recoveries: int = 0
    """States that were loaded while the other members went on training."""
    recovery_fallbacks: int = 0
    """State loads for which the other members had to wait."""
    averages_replayed: int = 0
    stood_in: int = 0
    """Calls in which a deputy took part, as the program was late."""
    checkpoints: int = 0
    """Checkpoints that this member wrote completely."""
    checkpoint_failures: int = 0
    checkpoints_skipped: int = 0
    """Checkpoints left out because the previous one was still being written."""
    checkpoint_step: int = 0
    """Step of the newest checkpoint that this member completed."""

    @property
    def last_pause(self) -> float:
        """Seconds from the last freeze to the activation that ended it."""
        return self.pauses.last
