"""The calls of one step of a ``Manager``.

Tensors are collected, and averaged together as soon as somebody waits for one of them. At its end all vote whether the step is
applied. A replica with an error may have nothing to send: it declines whatever call the others make next, average or vote.
With that the step has ended at all replicas: none applies it, and none makes a further call for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...errors import FTLibError
from ...status import Status

__all__ = ["AVERAGE", "Reduces", "Step"]

AVERAGE = "MEAN"
_QUANTIZED = "fp8"


class Reduces(Protocol):
    """What a step needs of ``FTLib``."""

    def allreduce(self, tensor: torch.Tensor | Sequence[torch.Tensor], op: str) -> Status:
        """See ``FTLib``."""

    def vote(self, count: int, *, against: bool) -> tuple[Status, int]:
        """See ``FTLib``."""

    def allreduce_average(
        self, target: Sequence[torch.Tensor], *, weight: float, batches: int, compression: str | None
    ) -> Status:
        """See ``FTLib``."""

    def decline(self) -> Status:
        """See ``FTLib``."""


def _neutral(dtype: torch.dtype, op: str) -> complex:
    """What changes no result of ``op``."""
    if op == "PRODUCT":
        return 1
    if op not in ("MIN", "MAX"):
        return 0
    if dtype is torch.bool:
        return op == "MIN"
    if dtype.is_floating_point:
        return math.inf if op == "MIN" else -math.inf
    return torch.iinfo(dtype).max if op == "MIN" else torch.iinfo(dtype).min


@dataclass(frozen=True, slots=True)
class _Item:
    tensor: torch.Tensor
    op: str
    quantized: bool


class Step:
    """Used by the thread that trains, and by the one that runs its backward pass, one after the other."""

    def __init__(self, ft: Reduces, *, counts: bool) -> None:
        """``counts``: False for a spare, whose tensors change no result."""
        self._ft = ft
        self._counts = counts
        self._pending: list[_Item] = []
        self._sendings = 0
        self._over = False
        """No replica applies the step, and all know it."""

    def add(self, tensor: torch.Tensor, op: str, *, quantized: bool) -> int:
        """Reduce ``tensor`` in place, together with those that come until somebody waits; returns the number of the sending
        that it goes with. ``op``: as in ``FTLib.allreduce``.
        """
        if not self._counts:
            tensor.fill_(_neutral(tensor.dtype, op))
        if any(item.tensor.data_ptr() == tensor.data_ptr() for item in self._pending if tensor.numel()):
            self._send()  # one after the other: the second is of the first's result
        self._pending.append(_Item(tensor, op, quantized))
        return self._sendings

    def settle(self, sending: int, *, error: bool) -> None:
        """Reduce what goes with ``sending``, if that was not done yet. ``error``: this replica cannot apply the step."""
        if sending != self._sendings:
            return
        if error:
            self._decline()
        self._send()

    def commit(self, *, error: bool) -> int:
        """End the step: reduce all that was added, and vote. ``error``: this replica cannot apply the step.

        Returns how many replicas count; 0 if no replica applies the step. FTLibError if this worker has left the job.
        """
        if error:
            self._decline()
        self._send()
        if self._over:
            return 0
        status, count = self._ft.vote(int(self._counts), against=False)
        self._note(status)
        return count

    def _send(self) -> None:
        """Reduce all that was added, unless the step is over."""
        pending, self._pending = self._pending, []
        self._sendings += 1
        while pending and not self._over:
            first = pending[0]
            alike = [item.tensor for item in pending if (item.op, item.quantized) == (first.op, first.quantized)]
            pending = [item for item in pending if (item.op, item.quantized) != (first.op, first.quantized)]
            self._note(self._reduce(alike, first))

    def _decline(self) -> None:
        """End the step at all replicas."""
        while not self._over:
            self._note(self._ft.decline())

    def _reduce(self, tensors: Sequence[torch.Tensor], like: _Item) -> Status:
        if like.op != AVERAGE:
            return self._ft.allreduce(tensors, like.op)
        compression = _QUANTIZED if like.quantized else None
        return self._ft.allreduce_average(tensors, weight=float(self._counts), batches=0, compression=compression)

    def _note(self, status: Status) -> None:
        if status is Status.ABORT:
            raise FTLibError("this worker has left the job, or its manager was shut down: end the program, or start it again")
        self._over = self._over or not status
