"""Durations counted into buckets: a count, a sum, a maximum and a histogram, for less than a microsecond each."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

__all__ = ["CALLS", "PAUSES", "Tally"]

PAUSES = (0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds in seconds for pauses: a crash costs tens of milliseconds, silence about ``exclude_after``."""

CALLS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""The same for calls, waiting for slower workers included."""


class Tally:
    """One writer; readers may see a duration half counted."""

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
        """``count``, ``sum``, ``last``, ``max`` and ``buckets``: ``[bound, how many were at most so long]`` each."""
        reached, buckets = 0, []
        for bound, count in zip(self._bounds, self._counts, strict=False):
            reached += count
            buckets.append([bound, reached])
        return {"count": self.count, "sum": self.total, "last": self.last, "max": self.maximum, "buckets": buckets}
