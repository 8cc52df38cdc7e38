"""Averages of matrices by their largest directions: PowerSGD (Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithm 1).

A matrix M of n rows and m columns is sent as P = M Q, n x rank, and then as Q = M' P, m x rank, with the columns of the summed P
made orthonormal. The sum of all members' M is nearly P Q'; what it lacks, each member owes (feedback). The next call begins with
this call's Q, and so comes closer to the directions that matter. Vectors and small matrices are sent as they are, beside P.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Operation

from .compression import Compression, allreduce
from .matrices import orthonormal, write_product
from .reduction import Part, Reduction

__all__ = ["PowerSGD"]

_WARM = "q"
_SCRATCH = 1 << 16


class _Group(NamedTuple):
    """The matrices of one shape in a bucket; ``starts``: where each begins."""

    rows: int
    columns: int
    starts: tuple[int, ...]


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
        data, unsent = reduction.data, reduction.unsent
        groups, rest = _divide(reduction.parts, self.rank)
        left = [len(group.starts) * group.rows * self.rank for group in groups]
        right = [len(group.starts) * group.columns * self.rank for group in groups]
        plain = sum(span.stop - span.start for span in rest)
        first, second = reduction.take(sum(left) + plain, torch.float32), reduction.take(sum(right), torch.float32)
        ps = [row.view(len(g.starts), g.rows, self.rank) for row, g in zip(first[: sum(left)].split(left), groups, strict=True)]
        qs = [row.view(len(g.starts), g.columns, self.rank) for row, g in zip(second.split(right), groups, strict=True)]
        warm = reduction.state.get(_WARM)
        second.copy_(_start(second.numel()) if warm is None else warm)
        for group, p, q in zip(groups, ps, qs, strict=True):
            for number, matrix in enumerate(_matrices(data, group)):
                torch.mm(matrix, q[number], out=p[number])
        if plain:
            torch.cat([data[span] for span in rest], out=first[sum(left) :])
        yield allreduce(first)
        for group, p, q in zip(groups, ps, qs, strict=True):
            p.copy_(orthonormal(p))
            for number, matrix in enumerate(_matrices(data, group)):
                torch.mm(matrix.t(), p[number], out=q[number])
        if unsent is not None:
            for group, p, q in zip(groups, ps, qs, strict=True):
                there = _matrices(unsent, group)
                for number, matrix in enumerate(_matrices(data, group)):
                    torch.addmm(matrix, p[number], q[number].t(), alpha=-1.0, out=there[number])
            for span in rest:
                unsent[span].zero_()
        yield allreduce(second)
        scratch = reduction.take(max([_SCRATCH, *(group.columns for group in groups)]), torch.float32)
        for group, p, q in zip(groups, ps, qs, strict=True):
            for number, matrix in enumerate(_matrices(data, group)):
                write_product(p[number], q[number], matrix, scratch)
        if plain:
            sums = first[sum(left) :].split([span.stop - span.start for span in rest])
            for span, total in zip(rest, sums, strict=True):
                data[span] = total
        if bool(torch.isfinite(second).all()):
            reduction.state[_WARM] = second.clone()


def _divide(parts: Sequence[Part], rank: int) -> tuple[list[_Group], list[slice]]:
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
    return [_Group(*shape, tuple(starts)) for shape, starts in found.items()], rest


def _matrices(row: torch.Tensor, group: _Group) -> list[torch.Tensor]:
    size = group.rows * group.columns
    return [row[start : start + size].view(group.rows, group.columns) for start in group.starts]


def _start(count: int) -> torch.Tensor:
    """The first Q, random, and equal at all members."""
    return torch.rand(count, generator=torch.Generator().manual_seed(count)).sub_(0.5)
