"""Averages of matrices by their largest directions: PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1).

A matrix M of n rows and m columns is sent as P = M Q, n x rank, and then as Q = M' P, m x rank, with the columns of the summed
P made orthonormal. The sum of all members' M is nearly P Q'; what it lacks, each member owes (feedback). The next call begins
with this call's Q, and so comes closer to the directions that matter. Vectors and small matrices go as they are, beside P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Operation

from .compression import Compression
from .matrices import orthonormal, write_product
from .reduction import Part, Reduction

_WARM = "q"
_SCRATCH = 1 << 18


class _Matrices:
    """The matrices of one shape in a bucket, with their factors P and Q; of these, Q is kept transposed, as that is faster."""

    def __init__(self, rows: int, columns: int, starts: Sequence[int]) -> None:
        """``starts``: where each matrix begins in the bucket."""
        self.rows, self.columns, self.starts = rows, columns, starts
        self._p = self._q = torch.empty(0, dtype=torch.float32, device="cpu")

    def bind(self, p: torch.Tensor, q: torch.Tensor) -> None:
        """Where the factors are: rows of memory."""
        many = len(self.starts)
        self._p, self._q = p.view(many, self.rows, -1), q.view(many, -1, self.columns)

    def project(self, data: torch.Tensor) -> None:
        """P = M Q."""
        for matrix, p, q in zip(self._in(data), self._p, self._q, strict=True):
            torch.mm(matrix, q.t(), out=p)

    def project_back(self, data: torch.Tensor, unsent: torch.Tensor | None) -> None:
        """With the summed P, made orthonormal: Q = M' P. ``unsent`` = M - P Q', which need not have the same bits anywhere."""
        self._p.copy_(orthonormal(self._p))
        left = [None] * len(self.starts) if unsent is None else self._in(unsent)
        for matrix, p, q, there in zip(self._in(data), self._p, self._q, left, strict=True):
            torch.mm(p.t(), matrix, out=q)
            if there is not None:  # now, while the matrix is in the cache
                torch.addmm(matrix, p, q, alpha=-1.0, out=there)

    def write(self, data: torch.Tensor, scratch: torch.Tensor) -> None:
        """M = P Q', with the summed Q."""
        for matrix, p, q in zip(self._in(data), self._p, self._q, strict=True):
            write_product(p, q, matrix, scratch)

    def _in(self, row: torch.Tensor) -> list[torch.Tensor]:
        size = self.rows * self.columns
        return [row[start : start + size].view(self.rows, self.columns) for start in self.starts]


class PowerSGD(Compression):
    """See the module."""

    stages = 2

    def __init__(self, rank: int = 4, *, feedback: bool = True) -> None:
        """``rank``: how many directions of each matrix are sent. ``feedback``: see ``Compression``; without it, what the
        directions lack is lost, and training usually fails.
        """
        if type(rank) is not int or rank < 1:
            raise ConfigError(f"PowerSGD(rank={rank!r}): the rank must be a whole number of at least 1")
        self.rank = rank
        self.feedback = feedback

    @property
    def name(self) -> str:
        """See ``Compression``."""
        return f"PowerSGD({self.rank}){'' if self.feedback else ' without feedback'}"

    def reduce(self, reduction: Reduction) -> Iterator[Operation]:
        """See ``Compression``."""
        data, unsent, rank = reduction.data, reduction.unsent, self.rank
        groups, rest = _divide(reduction.parts, rank)
        left = sum(len(group.starts) * group.rows for group in groups) * rank
        right = sum(len(group.starts) * group.columns for group in groups) * rank
        first = reduction.take(left + sum(span.stop - span.start for span in rest), torch.float32)
        second = reduction.take(right, torch.float32)
        _bind(groups, first, second, rank)
        warm = reduction.state.get(_WARM)
        second.copy_(_start(right) if warm is None else warm)
        for group in groups:
            group.project(data)
        _gather(data, rest, first[left:])
        yield reduction.allreduce(first)
        for group in groups:
            group.project_back(data, unsent)
        if unsent is not None:
            for span in rest:
                unsent[span].zero_()
        yield reduction.allreduce(second)
        scratch = reduction.take(max([_SCRATCH, *(group.columns for group in groups)]), torch.float32)
        for group in groups:
            group.write(data, scratch)
        _scatter(first[left:], rest, data)
        if bool(torch.isfinite(second).all()):
            reduction.state[_WARM] = second.clone()


def _bind(groups: Sequence[_Matrices], first: torch.Tensor, second: torch.Tensor, rank: int) -> None:
    left = right = 0
    for group in groups:
        p, q = (len(group.starts) * each * rank for each in (group.rows, group.columns))
        group.bind(first[left : left + p], second[right : right + q])
        left, right = left + p, right + q


def _gather(data: torch.Tensor, spans: Sequence[slice], row: torch.Tensor) -> None:
    if spans:
        torch.cat([data[span] for span in spans], out=row)


def _scatter(row: torch.Tensor, spans: Sequence[slice], data: torch.Tensor) -> None:
    start = 0
    for span in spans:
        stop = start + span.stop - span.start
        data[span] = row[start:stop]
        start = stop


def _divide(parts: Sequence[Part], rank: int) -> tuple[list[_Matrices], list[slice]]:
    """The matrices that are worth it, by shape, and the rest."""
    found: dict[tuple[int, int], list[int]] = {}
    rest: list[slice] = []
    for start, stop, shape in parts:
        count = stop - start
        if shape is None:  # of a tensor larger than a bucket: nearly square, whatever the tensor's rows are
            rows, columns = count // math.isqrt(count), math.isqrt(count)
        else:
            rows = shape[0] if len(shape) > 1 else 1
            columns = count // rows
        used = rows * columns if 2 * (rows + columns) * rank <= rows * columns else 0
        if used:
            found.setdefault((rows, columns), []).append(start)
        if used < count:
            rest.append(slice(start + used, stop))
    return [_Matrices(*shape, starts) for shape, starts in found.items()], rest


def _start(count: int) -> torch.Tensor:
    """The first Q, random, and equal at all members."""
    return torch.rand(count, generator=torch.Generator().manual_seed(count), dtype=torch.float32, device="cpu").sub_(0.5)
