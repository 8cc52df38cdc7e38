"""The calls of one step of a ``Manager``.

Tensors are collected, and reduced together when somebody waits for one of them, or when the backward pass ends in which the
first of them came; averages may be under way before that (see ``averages``). At its end all vote whether the step is applied. A
replica with an error may have nothing to send: it declines whatever call the others make next, average or vote. With that the
step has ended at all replicas: none applies it, and none makes a further call for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ...common.local_parts import local_part
from ...errors import ConfigError, FTLibError
from ...status import Status
from ...train.backward_end import at_end_of_backward, within_backward, within_checkpoint
from .averages import Averages, StepAverage

__all__ = ["AVERAGE", "Reduces", "Step"]

AVERAGE = "MEAN"


class Reduces(Protocol):
    """What a step needs of ``FTLib``, besides averages."""

    def allreduce(self, tensor: torch.Tensor | Sequence[torch.Tensor], op: str) -> Status:
        """See ``FTLib``."""

    def vote(self, count: int, *, against: bool) -> tuple[Status, int]:
        """See ``FTLib``."""

    def decline(self, *, batches: int) -> Status:
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


class _Reduction:
    """Tensors that are reduced by another operation than an average, all in one call."""

    def __init__(self, ft: Reduces, op: str) -> None:
        self._ft = ft
        self._op = op
        self._tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> None:
        """Reduce ``tensor``, too."""
        self._tensors.append(tensor)

    def finish(self) -> Status:
        """See ``FTLib.allreduce``."""
        return self._ft.allreduce(self._tensors, self._op)

    def abandon(self) -> None:
        """Nothing is under way."""


class Step:
    """Used by the thread that trains, and by the one that runs its backward pass, one after the other."""

    def __init__(self, ft: Reduces, averages: Averages, *, counts: bool, sound: Callable[[], bool]) -> None:
        """``averages``: of all steps. ``counts``: False for a spare, whose tensors change no result. ``sound``: returns False
        if the step cannot be applied here.
        """
        self._ft = ft
        self._averages = averages
        self._counts = counts
        self._sound = sound
        self._pending: dict[tuple[str, bool], StepAverage | _Reduction] = {}
        """What is collected, by operation and whether it is quantized, in the order in which the first of each came."""
        self._places: set[int] = set()
        """Where in memory the pending tensors are."""
        self._averaged = 0
        """How many averages were begun."""
        self._sendings = 0
        self._over = False
        """No replica applies the step, and all know it."""

    def add(self, tensor: torch.Tensor, op: str, *, quantized: bool) -> int:
        """Reduce ``tensor`` in place, together with those that come until somebody waits, or the backward pass ends; returns
        the number of the sending that it goes with. ``op``: as in ``FTLib.allreduce``. ConfigError for a sparse one.
        """
        tensor = local_part(tensor.detach())
        if tensor.layout is not torch.strided:
            raise ConfigError(f"allreduce: a tensor is {tensor.layout}: only dense ones can be reduced; pass tensor.to_dense()")
        if not self._counts:
            tensor.fill_(_neutral(tensor.dtype, op))
        if tensor.numel():
            if tensor.data_ptr() in self._places:
                self._send()  # one after the other: the second is of the first's result
            self._places.add(tensor.data_ptr())
        self._collection(op, quantized=quantized).add(tensor)
        return self._sendings

    def settle(self, sending: int) -> None:
        """Reduce what goes with ``sending``, if that was not done yet."""
        if sending != self._sendings:
            return
        if not self._sound():
            self._decline()
        self._send()

    def commit(self) -> int:
        """End the step: reduce all that was added, and vote.

        Returns how many replicas count; 0 if no replica applies the step. FTLibError if this worker has left the job.
        """
        if not self._sound():
            self._decline()
        self._send()
        if self._over:
            return 0
        status, count = self._ft.vote(int(self._counts), against=False)
        self._note(status)
        return count

    def _collection(self, op: str, *, quantized: bool) -> StepAverage | _Reduction:
        """What is collected for that operation."""
        found = self._pending.get((op, quantized))
        if found is not None:
            return found
        first = not self._pending
        beside = first and within_backward() and not within_checkpoint()
        if op != AVERAGE:
            found = _Reduction(self._ft, op)
        else:
            early = beside and not self._over
            found = self._averages.begin(self._averaged, quantized=quantized, counts=self._counts, early=early)
            self._averaged += 1
        self._pending[op, quantized] = found
        if beside:
            at_end_of_backward(self._end, self._abandon, last=True)
        return found

    def _end(self) -> None:
        """The backward pass has ended in which tensors were added."""
        if self._sound():
            self._send()

    def _send(self) -> None:
        """Reduce all that was added, unless the step is over."""
        pending, self._pending = self._pending, {}
        self._places.clear()
        self._sendings += 1
        for each in pending.values():
            if self._over:
                each.abandon()
            else:
                self._note(each.finish())

    def _abandon(self) -> None:
        """The backward pass has raised: nobody is to wait for the tensors that it did not add."""
        for each in self._pending.values():
            each.abandon()

    def _decline(self) -> None:
        """End the step at all replicas."""
        self._abandon()
        while not self._over:
            self._note(self._ft.decline(batches=0))  # as its averages, which use up none

    def _note(self, status: Status) -> None:
        if status is Status.ABORT:
            raise FTLibError("this worker has left the job, or its manager was shut down: end the program, or start it again")
        self._over = self._over or not status
