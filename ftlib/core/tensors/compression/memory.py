"""What a member keeps of the compressed calls of one layout: what it owes, what a compression starts with, and buffers."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from ftlib.errors import ConfigError
from ftlib.frameworks.base import Operation

from .buffers import Allocate, Buffers
from .compression import Compression
from .reduction import Part, Reduction


@dataclass(slots=True)
class _Debts:
    """What this member did not send yet of one model's gradients, by the bucket's number."""

    owner: weakref.ref[torch.Tensor]
    owed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Added to the next call's contribution. Changes when a call has finished."""
    spare: dict[int, torch.Tensor] = field(default_factory=dict)
    """Rows for what the call in progress does not send."""
    unsent: dict[int, torch.Tensor] = field(default_factory=dict)
    """Of the newest attempt, as far as its last operations have begun."""


class CallMemory:
    """Of one layout. Owned by the training thread."""

    def __init__(self, allocate: Allocate) -> None:
        """``allocate``: see ``Framework``."""
        self._allocate = allocate
        self._buffers = Buffers(allocate)
        self._debts: dict[int, _Debts] = {}
        """By the identity of a model's first tensor: models with equal layouts owe different things."""
        self._attempt: tuple[int, str, int] | None = None
        """The newest attempt: the call's number, the view, how many buckets it has; None: it is over."""
        self._current: _Debts | None = None
        self._view_id = ""
        self._states: dict[int, dict[str, torch.Tensor]] = {}
        """Of the compression, by the bucket's number; for the view ``_view_id`` alone, so that all members have the same."""

    def begin(self, number: int, view_id: str, owner: torch.Tensor | None, buckets: int) -> None:
        """An attempt at call ``number`` begins. ``owner``: the first tensor of the model; None if this member contributes
        nothing of its own. ``buckets``: how many are compressed.
        """
        if view_id != self._view_id:
            self._view_id, self._states = view_id, {}
        self._attempt = number, view_id, buckets
        self._current = None if owner is None else self._debts_of(owner)
        if self._current is not None:
            self._current.unsent.clear()

    def reduce(
        self, number: int, compression: Compression, data: torch.Tensor, parts: Sequence[Part], rank: int, size: int
    ) -> Iterator[Operation]:
        """The operations that replace ``data``, this member's contribution to bucket ``number``, by the sum of all."""
        debts, unsent = self._current if compression.feedback else None, None
        if debts is not None:
            if (owed := debts.owed.get(number)) is not None:
                data.add_(owed)
            unsent = debts.spare.get(number)
            if unsent is None:
                unsent = debts.spare[number] = self._allocate(data.numel(), torch.float32)
        state = self._states.setdefault(number, {})
        reduction = Reduction(rank, size, data, parts, unsent, state, self._buffers)
        left = compression.stages
        for operation in compression.reduce(reduction):
            left -= 1
            if left < 0:
                break
            if not left and debts is not None and unsent is not None:
                debts.unsent[number] = unsent
            yield operation
        if left:
            raise ConfigError(
                f"compression {compression.name} says that it has {compression.stages} operations, and has "
                f"{'more' if left < 0 else compression.stages - left}: correct its stages"
            )
        reduction.end()

    def finished(self, number: int, view_id: str, *, checked: bool) -> None:
        """Call ``number`` has finished, here or at a donor, with what this member contributed to it in ``view_id``.

        ``checked``: the result holds neither inf nor nan.
        """
        attempt, debts = self._attempt, self._current
        self._attempt = self._current = None
        if debts is None or attempt is None or attempt[:2] != (number, view_id) or len(debts.unsent) != attempt[2]:
            return
        for bucket, unsent in debts.unsent.items():
            if not checked and not bool(torch.isfinite(unsent.sum())):
                continue
            former = debts.owed.get(bucket)
            debts.owed[bucket] = unsent
            if former is None:
                del debts.spare[bucket]
            else:
                debts.spare[bucket] = former

    def forget(self) -> None:
        """The state here was replaced by the others': what was owed may be in theirs already, so nothing is owed any more."""
        for debts in self._debts.values():
            debts.spare |= debts.owed
            debts.owed.clear()
            debts.unsent.clear()

    def owed(self, owner: torch.Tensor) -> dict[int, torch.Tensor]:
        """What this member owes of the model whose first tensor is ``owner``, by the bucket's number."""
        found = self._debts.get(id(owner))
        return {} if found is None or found.owner() is not owner else dict(found.owed)

    def _debts_of(self, owner: torch.Tensor) -> _Debts:
        key = id(owner)
        found = self._debts.get(key)
        if found is None or found.owner() is not owner:
            gone = [each for each, kept in self._debts.items() if kept.owner() is None]
            former = [self._debts.pop(each) for each in gone]
            found = self._debts[key] = _Debts(weakref.ref(owner))
            if former:  # a program that passes new tensors in each call owes nothing, and should not pay for new rows either
                found.spare = former[0].owed | former[0].spare
        return found
