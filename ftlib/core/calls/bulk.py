"""The buckets of one attempt that go by the accelerator: launched together, and waited for once."""

from __future__ import annotations

from ...common.devices import device_at
from ...frameworks.base import Group, Operation, OperationKind, Work
from ..tensors.device_copies import look
from ..tensors.staging import Slot, Staging
from .call import Call

__all__ = ["Bulk"]


class Bulk:
    """To be made only if all members' accelerators work; each member then launches the same operations."""

    def __init__(self, call: Call, staging: Staging, group: Group, assumed: float) -> None:
        """Stage the buckets on their devices, and launch the operations. ``work`` fails if that cannot be done.

        ``assumed``: see ``Call.fill``.
        """
        self._places = call.layout.places
        self.slots: dict[int, Slot] = {}
        """The slots of the buckets that ``group`` takes, by the buckets' numbers."""
        for number, bucket in enumerate(call.layout.buckets):
            if bucket.place and group.takes(device_at(bucket.place).empty(0, bucket.dtype)):
                slot = self.slots[number] = staging.slot(number, 0)
                call.fill(slot, assumed, row=group.allocate_at(bucket.place, bucket.count, bucket.dtype))
        operations = []
        for slot in self.slots.values():
            assert slot.row is not None
            operations.append(Operation(OperationKind.ALLREDUCE, slot.row, slot.bucket.op))
        self._asked = call.veto
        """True if inf and nan are looked for."""
        self.work: Work | None = group.submit_bulk(operations, self._look if call.veto else None) if operations else None
        """Ends with the operations; None if there are none."""

    def end(self) -> bool:
        """After ``work`` has ended: note where the data is; False if it was looked for inf and nan, and there are some."""
        for place in self._places if self.slots else ():
            device_at(place).awaited()
        for slot in self.slots.values():
            slot.reduced()
        return not self._asked or all(slot.finite for slot in self.slots.values())

    def give_up(self, staging: Staging) -> None:
        """After an abort: never use the slots again if operations may still be under way."""
        if self.work is not None and not self.work.done():
            for slot in self.slots.values():
                staging.abandon(slot)

    def _look(self) -> None:
        for place in self._places:
            look(place, [slot for slot in self.slots.values() if slot.bucket.place == place])
