"""In which order one member reads its pieces of shards: several at a time, in turn, in batches that never span two pieces."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from ..dealing.ranges import Range, Ranges


@dataclass(frozen=True, slots=True)
class _Run:
    """Batches of the same pieces in turn, as long as none of them ends."""

    first: int
    """The run's first batch."""
    lanes: Ranges
    """What is left of each piece as the run begins."""
    pending: int
    """The first of the pieces that no lane has begun yet."""


class Schedule:
    """The batches of one member's pieces."""

    __slots__ = ("_firsts", "_runs", "_size", "length", "pieces")

    def __init__(self, pieces: Ranges, batch_size: int, lanes: int) -> None:
        """``pieces``: in order. ``batch_size``: positions. ``lanes``: how many pieces are read in turn."""
        self.pieces, self._size = pieces, batch_size
        self._runs: list[_Run] = []
        self.length = 0
        """Batches."""
        active, pending = list(pieces[:lanes]), min(lanes, len(pieces))
        while active:
            self._runs.append(_Run(self.length, tuple(active), pending))
            turns = min(-(-(stop - start) // batch_size) for start, stop in active)
            self.length += turns * len(active)
            following: list[Range] = []
            for start, stop in active:
                if start + turns * batch_size < stop:
                    following.append((start + turns * batch_size, stop))
                elif pending < len(pieces):
                    following.append(pieces[pending])
                    pending += 1
            active = following
        self._firsts = [run.first for run in self._runs]

    def batch(self, index: int) -> Range:
        """Return the positions of batch ``index``, below ``length``."""
        run = self._runs[bisect.bisect_right(self._firsts, index) - 1]
        turn, lane = divmod(index - run.first, len(run.lanes))
        start, stop = run.lanes[lane]
        start += turn * self._size
        return start, min(stop, start + self._size)

    def left(self, count: int) -> Ranges:
        """Return what is left of the pieces after ``count`` batches: those begun first."""
        if count >= self.length:
            return ()
        run = self._runs[bisect.bisect_right(self._firsts, count) - 1]
        turns, lanes = divmod(count - run.first, len(run.lanes))
        begun = [(start + (turns + (lane < lanes)) * self._size, stop) for lane, (start, stop) in enumerate(run.lanes)]
        return (*((start, stop) for start, stop in begun if start < stop), *self.pieces[run.pending :])
