"""Sets of positions as ranges ``(start, stop)``: a few pairs of integers for millions of samples."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable

Range = tuple[int, int]
"""Positions ``start`` to ``stop - 1``."""
Ranges = tuple[Range, ...]
"""Several ranges, none of them empty, no two with a position in common."""


def joined(pieces: Iterable[Range]) -> Ranges:
    """Sort disjoint ranges, and join those that touch."""
    ranges: list[Range] = []
    for start, stop in sorted(pieces):
        if start == stop:
            continue
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    return tuple(ranges)


def length(ranges: Iterable[Range]) -> int:
    """Count their positions."""
    return sum(stop - start for start, stop in ranges)


class Strip:
    """Ranges laid end to end, to be cut by offset."""

    __slots__ = ("_ends", "ranges")

    def __init__(self, ranges: Ranges) -> None:
        """``ranges``: in order."""
        self.ranges = ranges
        self._ends = tuple(itertools.accumulate(stop - start for start, stop in ranges))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def cut(self, start: int, stop: int) -> Ranges:
        """Return the positions at offsets ``start`` to ``stop - 1``; fewer if the strip ends before."""
        pieces = []
        index = bisect.bisect_right(self._ends, start)
        while index < len(self.ranges) and start < stop:
            end = self._ends[index]
            last = self.ranges[index][1]
            until = min(end, stop)
            pieces.append((last - (end - start), last - (end - until)))
            start = until
            index += 1
        return tuple(pieces)
