"""The ledger of one epoch: each committed position with its step and member. Run-length coded: steady rounds are one entry."""

from __future__ import annotations

import array
import heapq
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .packing import packed, unpacked
from .ranges import Range

_FIELDS = 8
_BLOCK = 4096
"""Closed runs that are packed together."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The positions that one member used up in one call, or a part of them."""

    step: int
    """``ft.step`` after the call."""
    member: str
    granted: bool
    """Whether the call granted a step; False: it was vetoed (inf, nan), and its samples count as seen."""
    start: int
    stop: int


@dataclass(slots=True)
class _Run:
    """Pieces of equal size at equal distances, ``per`` of them in each of successive steps."""

    step: int
    granted: int
    per: int
    count: int
    start: int
    stride: int
    size: int

    def continues(self, step: int, granted: int, pieces: Sequence[Range]) -> bool:
        if granted != self.granted or len(pieces) != self.per or step != self.step + self.count // self.per:
            return False
        if self.count == 1:
            self.stride = pieces[0][0] - self.start
        start = self.start + self.stride * self.count
        for first, stop in pieces:
            if first != start or stop - first != self.size:
                return False
            start += self.stride
        return True


class Ledger:
    """The ledger of one epoch; only its one owner appends to it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._members: dict[str, int] = {}
        self._open: dict[str, _Run] = {}
        self._closed = array.array("q")
        self._blocks: list[bytes] = []

    def add(self, step: int, member: str, pieces: Sequence[Range], *, granted: bool) -> None:
        """Record that the member's call used up ``pieces``, in order."""
        run = self._open.get(member)
        if run is not None and run.continues(step, granted, pieces):
            run.count += len(pieces)
            return
        even = len({stop - start for start, stop in pieces}) == 1 and (
            len({after[0] - before[0] for before, after in itertools.pairwise(pieces)}) <= 1
        )
        if even:
            stride = pieces[1][0] - pieces[0][0] if len(pieces) > 1 else 0
            self._replace(member, _Run(step, granted, len(pieces), len(pieces), pieces[0][0], stride, _size(pieces[0])))
        else:
            for piece in pieces:
                self._replace(member, _Run(step, granted, 1, 1, piece[0], 0, _size(piece)))

    def __iter__(self) -> Iterator[Entry]:
        """Return all entries as of now, in the order of steps, and within a step in that of the members' names.

        Runs are expanded one by one as they are read: there may be millions of entries.
        """
        flat = self._runs()
        runs = np.frombuffer(flat, dtype=np.int64).reshape(-1, _FIELDS) if flat else np.zeros((0, _FIELDS), np.int64)
        members = [_expanded(name, runs[runs[:, 0] == number]) for name, number in self._members.items()]
        return heapq.merge(*members, key=operator.attrgetter("step", "member"))

    def state(self) -> dict[str, Any]:
        """Everything, as plain values."""
        tail = self._closed + self._unclosed()
        return {"epoch": self.epoch, "members": list(self._members), "runs": [*self._blocks, _columns(tail)]}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Ledger:
        """Read what ``state`` returned. The next entries begin new runs."""
        ledger = cls(state["epoch"])
        ledger._members = {member: index for index, member in enumerate(state["members"])}
        *blocks, tail = state["runs"]
        ledger._blocks = list(blocks)
        ledger._closed = _rows(tail)
        return ledger

    def _replace(self, member: str, run: _Run) -> None:
        self._members.setdefault(member, len(self._members))
        before = self._open.get(member)
        if before is not None:
            self._closed.extend(self._flat(member, before))
            if len(self._closed) >= _BLOCK * _FIELDS:
                self._blocks.append(_columns(self._closed))
                self._closed = array.array("q")
        self._open[member] = run

    def _flat(self, member: str, run: _Run) -> tuple[int, ...]:
        return (self._members[member], run.step, run.granted, run.per, run.count, run.start, run.stride, run.size)

    def _unclosed(self) -> array.array[int]:
        return array.array("q", [number for member, run in self._open.items() for number in self._flat(member, run)])

    def _runs(self) -> array.array[int]:
        runs = array.array("q")
        for block in self._blocks:
            runs.extend(_rows(block))
        return runs + self._closed + self._unclosed()


def _expanded(member: str, runs: np.ndarray[Any, np.dtype[np.int64]]) -> Iterator[Entry]:
    """Yield the entries of one member's runs, which are in the order of steps."""
    for run in runs:
        _, step, granted, per, count, start, stride, size = run.tolist()
        for index in range(count):
            first = start + stride * index
            yield Entry(step + index // per, member, bool(granted), first, first + size)


def _size(piece: Range) -> int:
    return piece[1] - piece[0]


def _columns(runs: array.array[int]) -> bytes:
    """Pack field by field, each as its difference to the run before: regular runs pack well."""
    columns = np.frombuffer(runs, dtype=np.int64).reshape(-1, _FIELDS).T if runs else np.zeros((_FIELDS, 0), np.int64)
    return packed(array.array("q", np.diff(columns, axis=1, prepend=0).tobytes()))


def _rows(data: bytes) -> array.array[int]:
    columns = np.array(unpacked(data), dtype=np.int64).reshape(_FIELDS, -1)
    return array.array("q", np.cumsum(columns, axis=1).T.tobytes())
