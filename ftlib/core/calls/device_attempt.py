"""One attempt at a call with tensors on devices: by the group, through CPU memory, or by the accelerators of all members.

The head has no data and goes by the group. Its trailer says whose accelerators work; so all members decide alike, in the very
call, and without a message. Everything else begins after the head has ended: then all members are in this call, and no
earlier result is needed any more. The host waits once: for the copies to CPU memory, or for the accelerator.
"""

from __future__ import annotations

from ...common.devices import device_at
from ...frameworks.base import Operation, OperationKind, Work
from ..tensors.device_copies import each_finite
from ..tensors.staging import Slot
from ..tensors.trailer import RankRecord, Trailer
from .attempt import BARE, Attempt
from .call import Results

__all__ = ["DeviceAttempt"]


class DeviceAttempt(Attempt):
    """See ``Attempt``."""

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:
        """See ``Attempt.run``."""
        session, call, layout, window = self._session, self._call, self._call.layout, self._window
        agreed = session.agreed
        slots = {0: self._begin_head(record)}
        self._reap()
        trailer = self._trailer
        assert trailer is not None
        bulk, work = self._launch(trailer)
        slots |= self._fetch(bulk)
        for number in range(1, len(layout.buckets)):
            if number not in bulk:
                if len(window) == in_flight:
                    self._reap()
                slots[number] = slots.get(number) or self._filled(number)
                self._submit(slots[number])
        while window:
            self._reap()
        if work is not None:
            self._end_bulk(bulk, work)
        if agreed is not layout or call.changes_state:
            session.agree(layout, call.script)
        in_order = [(slots | bulk)[number] for number in range(len(layout.buckets))]
        results = Results(call.number, layout, in_order, trailer.weight, self._finite)
        return trailer, results.carried(accelerated=bool(bulk))

    def _begin_head(self, record: RankRecord) -> Slot:
        """Begin the head's operation, after a prelude if not all members may expect this layout.

        As ``Attempt.run`` does it in its loop, which every call on the CPU runs through, and so has no function for it.
        """
        session, layout = self._session, self._call.layout
        agreed, said = session.agreed, None
        if agreed is not layout and (agreed is None or agreed.signature != layout.signature):
            said = self._say(BARE if agreed is None else agreed.head, record)
        slot = self._filled(0)  # staged beside the prelude, in a free slot
        session.codec.write(slot.trailer, record, slot.bucket.op)
        if said is not None:
            self._hear(said)
        self._submit(slot)
        return slot

    def _submit(self, slot: Slot) -> None:
        """Begin the operation on a slot."""
        group = self._session.group
        assert group is not None
        self._window.append((group.submit(Operation(OperationKind.ALLREDUCE, slot.flat, slot.bucket.op)), slot))

    def _launch(self, trailer: Trailer) -> tuple[dict[int, Slot], Work | None]:
        """Give the accelerator all buckets that it takes, if all members' accelerators work; these, by number."""
        group, layout = self._session.group, self._call.layout
        assert group is not None
        taken: dict[int, Slot] = {}
        for number, bucket in enumerate(layout.buckets if trailer.accelerated else ()):
            if bucket.place and group.takes(device_at(bucket.place).empty(0, bucket.dtype)):
                slot = taken[number] = self._staging.slot(number, 0)
                self._call.fill(slot, stays=True)
        operations = []
        for slot in taken.values():
            assert slot.row is not None
            operations.append(Operation(OperationKind.ALLREDUCE, slot.row, slot.bucket.op))
        return taken, group.submit_bulk(operations) if operations else None

    def _end_bulk(self, taken: dict[int, Slot], work: Work) -> None:
        """Wait for the accelerator, and look for inf and nan."""
        self.wait(work, None)
        for slot in taken.values():
            slot.reduced()
        if not (self._call.veto and self._finite):
            return
        for place in self._call.layout.places:
            rows = [slot.row for slot in taken.values() if slot.bucket.place == place and slot.row is not None]
            self._finite = self._finite and all(each_finite(place, rows))
