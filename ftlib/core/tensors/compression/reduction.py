"""One bucket in one call, as a compression works on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ftlib.frameworks.base import Operation, OperationKind

from .buffers import Buffers


class Part(NamedTuple):
    """Elements ``start`` to ``stop`` of the bucket: a tensor of ``shape``, or a part of one that is larger than a bucket."""

    start: int
    stop: int
    shape: tuple[int, ...] | None
    """None for a part of a tensor."""


@dataclass(slots=True)
class Reduction:
    """What ``Compression.reduce`` gets."""

    rank: int
    size: int
    """This member's rank, and how many members there are."""
    data: torch.Tensor
    """Float32, one row. This member's contribution, which the sum of all members' replaces. The sum is the average already."""
    parts: Sequence[Part]
    """The tensors in ``data``, in order and without gaps."""
    unsent: torch.Tensor | None
    """A row like ``data``, with undefined values; None without feedback."""
    state: dict[str, torch.Tensor]
    """Kept from call to call while the same members average; empty in the first call of a view. So it has the same content at
    all of them, if ``reduce`` puts the same in."""
    buffers: Buffers
    taken: list[torch.Tensor] = field(default_factory=list)
    """Buffers to give back after the last operation."""

    def allreduce(self, tensor: torch.Tensor) -> Operation:
        """To be yielded: sum a contiguous tensor over all members, in place."""
        return Operation(OperationKind.ALLREDUCE, tensor, "SUM")

    def all_to_all(self, tensor: torch.Tensor) -> Operation:
        """To be yielded: exchange equal parts of a contiguous tensor. Part ``i`` goes to rank ``i``, and is replaced by the
        part that rank ``i`` has for this one.
        """
        return Operation(OperationKind.ALL_TO_ALL, tensor)

    def all_gather(self, tensor: torch.Tensor) -> Operation:
        """To be yielded: fill the equal parts of a contiguous tensor. Part ``rank`` is sent, the others are received."""
        return Operation(OperationKind.ALL_GATHER, tensor)

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements with undefined values; valid until ``reduce`` has ended."""
        row = self.buffers.take(count * dtype.itemsize)
        self.taken.append(row)
        return row[: count * dtype.itemsize].view(dtype)

    def end(self) -> None:
        """No operation is under way any more: the buffers may be used again."""
        self.buffers.give(self.taken)
        self.taken = []
