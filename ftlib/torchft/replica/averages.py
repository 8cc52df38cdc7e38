"""The averages of a ``Manager``'s steps. What the last steps have averaged in a backward pass, the next is expected to average,
too: its tensors are sent as they come, while backward computes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from ...core.engine.open_average import OpenAverage
from ...core.tensors.layout import Layout
from ...core.tensors.targets import Targets, check_writable
from ...errors import ConfigError
from ...status import Status

__all__ = ["Averages", "Opens", "StepAverage"]

_QUANTIZED = "fp8"
_PURPOSE = "of a step"


class Opens(Protocol):
    """What averages need of ``FTLib``."""

    def lay_out_average(
        self,
        module: None,
        parameters: Sequence[nn.Parameter],
        order: Sequence[int],
        *,
        bucket_bytes: int,
        first_bytes: int,
        compression: str | None,
        purpose: str,
    ) -> Layout:
        """See ``FTLib``."""

    def open_average(
        self,
        parameters: Sequence[nn.Parameter],
        layout: Layout,
        relaid: Callable[[], Layout],
        *,
        module: None,
        weight: float,
        batches: int,
    ) -> OpenAverage:
        """See ``FTLib``."""


@dataclass(slots=True)
class _Habit:
    """What the newest average in one place of a step was made of."""

    quantized: bool
    owners: list[nn.Parameter] = field(default_factory=list)
    """For each tensor a parameter without memory, whose gradient the tensor is while it is averaged."""
    layout: Layout | None = None
    ends: list[int] = field(default_factory=list)
    """By bucket: the index of the tensor with which it is complete."""
    alike: int = 0
    """So many averages in a row were made of the same."""
    wanted: int = 2
    """From so many on the next one is taken to be like them. Doubled when it was not: that costs all replicas a view."""

    def has(self, index: int, tensor: torch.Tensor) -> bool:
        """Whether the tensor in that place was like this one."""
        if index >= len(self.owners):
            return False
        owner = self.owners[index]
        return owner.dtype is tensor.dtype and owner.shape == tensor.shape and owner.device == tensor.device

    @property
    def expected(self) -> bool:
        """Whether the next average is taken to be like the newest one, and a part of it can be sent early."""
        return self.alike >= self.wanted and len(self.ends) > 1

    def missed(self) -> None:
        """An average was not what it was taken to be."""
        self.wanted *= 2

    def learn(self, tensors: Sequence[torch.Tensor], lay_out: Callable[[list[nn.Parameter]], Layout]) -> None:
        """An average is made of these tensors. ``lay_out``: returns the layout for their owners, where it is another."""
        if len(self.owners) == len(tensors) and all(self.has(index, tensor) for index, tensor in enumerate(tensors)):
            self.alike += 1
            return
        owners = [nn.Parameter(torch.empty((), dtype=each.dtype, device=each.device).expand(each.shape)) for each in tensors]
        self.layout = lay_out(owners)
        self.owners, self.alike = owners, 1
        self.ends = [max((piece.index for piece in bucket.pieces), default=-1) for bucket in self.layout.buckets]


class Averages:
    """Of one ``Manager``, step after step. Used by the thread that trains."""

    def __init__(self, ft: Opens, bucket_bytes: int) -> None:
        """``bucket_bytes``: of what is sent at once."""
        self._ft = ft
        self._bucket_bytes = bucket_bytes
        self._habits: list[_Habit] = []
        """By the average's place in a step."""

    def begin(self, place: int, *, quantized: bool, counts: bool, early: bool) -> StepAverage:
        """The average in that place of a step. ``quantized``: float32 is sent as fp8. ``counts``: False for a spare, whose
        tensors change no result. ``early``: it may be under way before all its tensors are there.
        """
        if place == len(self._habits):
            self._habits.append(_Habit(quantized))
        elif self._habits[place].quantized != quantized:
            self._habits[place] = _Habit(quantized)
        return StepAverage(self._ft, self._habits[place], self._bucket_bytes, counts=counts, early=early)


class StepAverage:
    """One average, to which tensors are added until it is finished."""

    def __init__(self, ft: Opens, habit: _Habit, bucket_bytes: int, *, counts: bool, early: bool) -> None:
        self._ft = ft
        self._habit = habit
        self._bucket_bytes = bucket_bytes
        self._counts = counts
        self._tensors: list[torch.Tensor] = []
        self._average: OpenAverage | None = None
        self._pushed = 0
        if early and habit.expected:
            self._open()

    def add(self, tensor: torch.Tensor) -> None:
        """Average ``tensor`` in place. Never waits for another replica."""
        if tensor.is_neg():
            raise ConfigError(
                "allreduce: the tensor is a view that negates what is in memory, as x.conj().imag: pass tensor.resolve_neg(), "
                "which is a tensor of its own"
            )
        if not tensor.is_contiguous():
            check_writable(Targets([tensor], [tensor]))
        index = len(self._tensors)
        self._tensors.append(tensor)
        if self._average is None:
            return
        if not self._habit.has(index, tensor):
            self._miss()
            return
        self._habit.owners[index].grad = tensor
        self._push(index)

    def finish(self) -> Status:
        """Wait for all replicas, and write the averages to the tensors. Statuses and errors: see ``FTLib``."""
        if self._average is not None and len(self._tensors) < len(self._habit.owners):
            self._miss()
        if self._average is None:
            self._habit.learn(self._tensors, self._lay_out)
            self._open()
        assert self._average is not None
        for owner, tensor in zip(self._habit.owners, self._tensors, strict=True):
            owner.grad = tensor
        try:
            return self._average.finish()
        finally:
            self._close()

    def abandon(self) -> None:
        """There will be no more tensors for now: let no replica wait for this one. Idempotent."""
        if self._average is not None:
            self._average.abandon()
            self._close()

    def _open(self) -> None:
        layout = self._habit.layout
        assert layout is not None
        self._average = self._ft.open_average(
            self._habit.owners, layout, lambda: layout, module=None, weight=float(self._counts), batches=0
        )
        self._pushed = 0

    def _push(self, index: int) -> None:
        """The tensors up to ``index`` are there."""
        assert self._average is not None
        ends = self._habit.ends
        while self._pushed < len(ends) and ends[self._pushed] <= index:
            self._pushed += 1
            self._average.push(self._pushed - 1)

    def _miss(self) -> None:
        """It is not like the one before: what is under way is given up, and sent anew."""
        self._habit.missed()
        self.abandon()

    def _lay_out(self, owners: list[nn.Parameter]) -> Layout:
        return self._ft.lay_out_average(
            None,
            owners,
            range(len(owners)),
            bucket_bytes=self._bucket_bytes,
            first_bytes=self._bucket_bytes,  # a small one more would be one operation more
            compression=_QUANTIZED if self._habit.quantized else None,
            purpose=_PURPOSE,
        )

    def _close(self) -> None:
        self._average = None
        for owner in self._habit.owners:
            owner.grad = None
