"""How long each member is outside of calls, according to the slots of a trailer, and which members fall behind.

A slot holds in one byte how long its rank was outside of calls before this one: forward, backward, optimizer, data; and the
rest of the backward before, if that ended within an open call. The code is logarithmic: 1 stands for up to 100 us, each further
code for 9 % more, 255 for about 90 hours; 0 means unknown.

Between two averages there may be minor calls (a barrier, the mean of a loss), and some programs average layer by layer. So
times are added up until an average before which some member worked for ``LEAST`` seconds: that is a *step* here.
"""

from __future__ import annotations

import functools
import statistics
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

LEAST = 0.001
"""Seconds below which times are not compared: scheduling alone makes equal work differ by as much."""
WINDOW = 64
"""Number of steps whose times are kept."""
_FINEST = 1e-4
_RATIO = 1.09
_SECONDS = (0.0, *(_FINEST * _RATIO**power for power in range(255)))
_BOUNDS = (0.0, *(_FINEST * _RATIO ** (power + 0.5) for power in range(254)))
"""The least seconds of each code from 1 on."""

coded: Callable[[float], int] = functools.partial(bisect, _BOUNDS)
"""The code of a duration in seconds, 1 to 255; 0 (unknown) if it is below 0."""
seconds: Callable[[int], float] = _SECONDS.__getitem__
"""The seconds that a code stands for; 0.0 for code 0 (unknown)."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A member that is slower than the others, with its figures in the last finished step."""

    member: str
    """The member's id."""
    name: str
    """The member's name in logs."""
    rank: int
    seconds: float
    """Time that the member spent outside of calls in that step."""
    median: float
    """The others' median of that time, in seconds."""
    steps: int
    """Number of slow steps in a row, this one included."""


@dataclass(frozen=True, slots=True)
class StragglerReport:
    """The findings of one step."""

    fell: Sequence[tuple[str, float, float, int]] = ()
    """New stragglers: id, time and the others' median of this step, steps in a row."""
    recovered: Sequence[str] = ()
    """Ids of the members that keep pace again."""


QUIET = StragglerReport()


@dataclass(slots=True)
class _Row:
    """One member's slow or quick steps in a row."""

    slow: int = 0
    calm: int = 0
    """Steps in a row that were not slow."""
    told: bool = False


class StepTimes:
    """The step times of one lifetime. Used by the training thread only, except ``facts``, which reads whole objects only."""

    def __init__(self, factor: float = 2.0, steps: int = 10) -> None:
        """A member is a straggler that takes more than ``factor`` times the others' median for ``steps`` steps in a row."""
        self.fallen: list[Straggler] = []
        """Stragglers of which the program was not notified yet."""
        self._factor = factor
        self._steps = steps
        self._averages = False
        """True once this program has averaged: from then on only an average ends a step."""
        self._by_rank: tuple[str, ...] = ()
        self._sums: list[float] | None = None
        """Seconds since the last step, by rank."""
        self._recent: deque[tuple[tuple[str, ...], list[float]]] = deque(maxlen=WINDOW)
        self._rows: dict[str, _Row] = {}

    def note(self, by_rank: tuple[str, ...], codes: bytes, *, average: bool) -> StragglerReport:
        """A call was finished; ``codes``: the members' times before it, by rank. ``average``: True if it was an average."""
        if by_rank is not self._by_rank:
            self._changed(by_rank)
        self._averages = self._averages or average
        times = [_SECONDS[code] for code in codes]
        if self._sums is not None:
            times = [sum(pair) for pair in zip(times, self._sums, strict=True)]
        if (self._averages and not average) or max(times) < LEAST:
            self._sums = times
            return QUIET
        self._sums = None
        self._recent.append((by_rank, times))
        # The others' median is at least this, whichever member is left out: a cheap way to see that none is slow.
        least = max(LEAST, sorted(times)[len(times) // 2 - 1])
        if not self._rows and (len(times) == 1 or max(times) <= self._factor * least):
            return QUIET
        return self._judged(self._slow(times))

    def _slow(self, times: list[float]) -> dict[str, tuple[float, float]]:
        """Time and the others' median of each member that is slow in this step. Zeros are unknown times."""
        known = {rank: time for rank, time in enumerate(times) if time}
        found = {}
        for rank, time in known.items():
            others = [other for each, other in known.items() if each != rank]
            if others and time > self._factor * max(LEAST, median := statistics.median(others)):
                found[self._by_rank[rank]] = (time, median)
        return found

    def _judged(self, slow: dict[str, tuple[float, float]]) -> StragglerReport:
        fell, recovered = [], []
        for member_id, (time, median) in slow.items():
            row = self._rows.setdefault(member_id, _Row())
            row.slow, row.calm = row.slow + 1, 0
            if row.slow >= self._steps and not row.told:
                row.told = True
                fell.append((member_id, time, median, row.slow))
        _, newest = self._recent[-1]
        silent = {self._by_rank[rank] for rank, time in enumerate(newest) if not time}
        for member_id in self._rows.keys() - slow.keys() - silent:
            row = self._rows[member_id]
            row.slow, row.calm = 0, row.calm + 1
            if not row.told or row.calm >= self._steps:  # not after one quick step: one report for a member at the limit
                recovered += [member_id] if row.told else []
                del self._rows[member_id]
        return StragglerReport(fell, recovered) if fell or recovered else QUIET

    def facts(self) -> dict[str, dict[str, Any]]:
        """By member of the newest step: ``last`` and ``median`` (of ``WINDOW`` steps) in seconds, ``slow_for``, ``straggler``.

        Any thread.
        """
        recent = list(self._recent.copy())  # one atomic copy: the training thread may append meanwhile
        if not recent:
            return {}
        by_rank, newest = recent[-1]
        found = {}
        for member_id, last in zip(by_rank, newest, strict=True):
            all_times = [times[ranks.index(member_id)] for ranks, times in recent if member_id in ranks]
            row = self._rows.get(member_id) or _Row()
            found[member_id] = {
                "last": last,
                "median": statistics.median(all_times),
                "slow_for": row.slow,
                "straggler": row.told,
            }
        return found

    def _changed(self, by_rank: tuple[str, ...]) -> None:
        self._by_rank, self._sums = by_rank, None
        self._rows = {member_id: row for member_id, row in self._rows.items() if member_id in by_rank}
