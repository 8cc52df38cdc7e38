"""How long each member is outside of calls, as slots tell it, and who falls behind.

A slot says in one byte how long its rank was outside of calls before this one: forward, backward, optimizer, data. The code is
logarithmic: 1 stands for up to 100 us, each further one for 9 % more, 255 for about 90 hours; 0 says nothing.

Between two averages there may be calls of little meaning (a barrier, the mean of a loss), and some programs average layer by
layer. So times are added up until an average before which somebody worked for ``LEAST``: that is a *step* here.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LEAST", "QUIET", "WINDOW", "StepTimes", "Straggler", "Verdict", "coded", "seconds"]

LEAST = 0.001
"""Seconds below which times are not compared: that is what a scheduler makes of equal work."""
WINDOW = 64
"""Steps of which the times are kept."""
_FINEST = 1e-4
_RATIO = 1.09
_PER_E = 1.0 / math.log(_RATIO)
_SECONDS = (0.0, *(_FINEST * _RATIO**power for power in range(255)))


def coded(duration: float) -> int:
    """The code of so many seconds, 1 to 255."""
    if duration <= _FINEST:
        return 1
    return min(255, 1 + round(math.log(duration / _FINEST) * _PER_E))


def seconds(code: int) -> float:
    """What a code stands for; 0.0 for 0, which says nothing."""
    return _SECONDS[code]


@dataclass(frozen=True, slots=True)
class Straggler:
    """A member that is slower than the others, as it is in the step that was finished last."""

    member: str
    """Its id."""
    name: str
    """How logs call it."""
    rank: int
    seconds: float
    """How long it was outside of calls in that step."""
    median: float
    """The median of the others."""
    steps: int
    """In a row, this one included."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step has shown."""

    fell: Sequence[tuple[str, float, float, int]] = ()
    """New stragglers: id, time and the others' median of this step, steps in a row."""
    recovered: Sequence[str] = ()
    """Who keeps pace again."""


QUIET = Verdict()


@dataclass(slots=True)
class _Row:
    """Steps in a row of one member."""

    slow: int = 0
    calm: int = 0
    """Not slow, since it was told of."""
    told: bool = False


class StepTimes:
    """Of one lifetime. The training thread's, but for ``facts``, which reads whole objects only."""

    def __init__(self, factor: float = 2.0, steps: int = 10) -> None:
        """A member is a straggler that takes more than ``factor`` times the others' median for ``steps`` steps in a row."""
        self.busy = 0
        """The code of how long this member was outside of calls before the call in progress."""
        self.fallen: list[Straggler] = []
        """Those of which the program was not told yet."""
        self._factor = factor
        self._steps = steps
        self._left: float | None = None
        self._averages = False
        """Whether this program averages: then nothing else ends a step."""
        self._by_rank: tuple[str, ...] = ()
        self._sums: list[float] | None = None
        """Seconds since the last step, by rank."""
        self._recent: deque[tuple[tuple[str, ...], list[float]]] = deque(maxlen=WINDOW)
        self._rows: dict[str, _Row] = {}

    # --- the own time --------------------------------------------------------------------------------------------------

    def entered(self, now: float) -> None:
        """A call begins."""
        self.busy = 0 if self._left is None else coded(now - self._left)

    def unknown(self) -> None:
        """The way to this call says nothing of this member's pace."""
        self.busy = 0

    def left(self, now: float) -> None:
        """It has ended."""
        self._left = now

    # --- everybody's ---------------------------------------------------------------------------------------------------

    def note(self, by_rank: tuple[str, ...], codes: bytes, *, average: bool) -> Verdict:
        """A call was finished, before which the members took so long. ``average``: whether it was one."""
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
        if not self._rows and self._even(times):
            return QUIET
        return self._judged(self._slow(times))

    def _even(self, times: list[float]) -> bool:
        """Whether nobody is slow, found with little effort; nor is anybody who says nothing."""
        if len(times) == 1:
            return True
        # The others' median is at least this, whoever is left out.
        least = max(LEAST, sorted(times)[len(times) // 2 - 1])
        return max(times) <= self._factor * least

    def _slow(self, times: list[float]) -> dict[str, tuple[float, float]]:
        """Time and others' median of each member that is slow in this step. Zeros say nothing."""
        known = {rank: time for rank, time in enumerate(times) if time}
        found = {}
        for rank, time in known.items():
            others = [other for each, other in known.items() if each != rank]
            if others and time > self._factor * max(LEAST, median := statistics.median(others)):
                found[self._by_rank[rank]] = (time, median)
        return found

    def _judged(self, slow: dict[str, tuple[float, float]]) -> Verdict:
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
            if not row.told or row.calm >= self._steps:  # not after one quick step: who is at the limit is told of once
                recovered += [member_id] if row.told else []
                del self._rows[member_id]
        return Verdict(fell, recovered)

    def facts(self) -> dict[str, dict[str, Any]]:
        """By member of the newest step: ``last`` and ``median`` (of ``WINDOW`` steps) in seconds, ``slow_for``, ``straggler``.

        Any thread.
        """
        recent = list(self._recent.copy())  # a copy in one go: the training thread may append meanwhile
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
