"""Buckets of one attempt that go by the accelerator: launched together, and waited for once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...common.devices import device_at
from ...frameworks.base import Group, Operation, OperationKind, Work
from ..tensors.device_copies import look
from ..tensors.layout import Bucket
from ..tensors.staging import Slot, Staging


def room_for(bucket: Bucket, group: Group) -> torch.Tensor | None:
    """A row for ``bucket`` on its device, where ``group`` takes it; None if it does not."""
    if bucket.place and group.takes(device_at(bucket.place).empty(0, bucket.dtype)):
        return group.allocate_at(bucket.place, bucket.count, bucket.dtype)
    return None


class Bulk:
    """To be made only if all members' accelerators work; each member then makes the same ones, in the same order."""

    def __init__(self, group: Group, slots: Sequence[Slot], *, asked: bool) -> None:
        """Launch the operations on these slots, which are staged on their devices. ``work`` fails if that cannot be done.

        ``asked``: True if inf and nan are to be looked for.
        """
        self._slots = slots
        self._places = tuple(dict.fromkeys(slot.bucket.place for slot in slots))
        self._asked = asked
        operations = []
        for slot in slots:
            assert slot.row is not None
            operations.append(Operation(OperationKind.ALLREDUCE, slot.row, slot.bucket.op))
        self.work: Work = group.submit_bulk(operations, self._look if asked else None)
        """Ends with the operations."""

    def end(self) -> bool:
        """After ``work`` has ended: note where the data is; False if it was looked for inf and nan, and there are some."""
        for place in self._places:
            device_at(place).awaited()
        for slot in self._slots:
            slot.reduced()
        return not self._asked or all(slot.finite for slot in self._slots)

    def give_up(self, staging: Staging) -> None:
        """After an abort: never use the slots again if operations may still be under way."""
        if not self.work.done():
            for slot in self._slots:
                staging.abandon(slot)

    def _look(self) -> None:
        for place in self._places:
            look(place, [slot for slot in self._slots if slot.bucket.place == place])
