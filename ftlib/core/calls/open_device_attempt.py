"""An open call's operations where tensors are on a device: what backward enqueues is sent while the device still computes.

Hooks of backward run ahead of the device, so nothing here waits for it. A complete bucket is gathered in a row of its own at
once, in the order of the program's stream; that overwrites no result that a survivor may need. When the head has ended, and so
has said whether accelerators carry the call, each row goes on as soon as it is gathered: to the accelerator, or to CPU memory,
from where the group takes it. What is left at the end of backward goes the same way; the device may still compute then.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch

from ...common.devices import Event, device_at
from ...errors import GroupError
from ...frameworks.base import Group
from ..tensors.device_copies import lower
from ..tensors.device_work import NothingToDo
from ..tensors.layout import Bucket
from ..tensors.staging import Slot, Staging
from ..tensors.trailer import Flag, RankRecord, Trailer
from .attempt import EnteredObserver, Waits
from .bulk import Bulk, room_for
from .call import Results
from .open_attempt import OpenAttempt
from .open_call import OpenCall
from .session import Session


class _Gathered(NamedTuple):
    """A bucket on a device whose gradients are complete."""

    row: torch.Tensor
    """Its data, there."""
    end: Event
    """When the data is in the row."""
    bulk: bool
    """True if an accelerator takes the row."""


class OpenDeviceAttempt(OpenAttempt):
    """See ``OpenAttempt``. Not for a session's first call, which may wait for accelerators."""

    def __init__(
        self,
        call: OpenCall,
        session: Session,
        staging: Staging,
        waits: Waits,
        record: RankRecord,
        plane: EnteredObserver | None = None,
    ) -> None:
        """See ``OpenAttempt``."""
        group = session.group
        assert group is not None
        if group.accelerated:
            record = record._replace(flags=record.flags | Flag.READY)
        super().__init__(call, session, staging, waits, record, plane)
        self._computed = False
        self._group: Group = group
        self._gathered: deque[_Gathered | None] = deque()
        """The complete buckets that have not gone on, in order; None for one on the CPU."""
        self._succeeded = 0
        """The number of launches that have ended well."""

    @property
    def begun(self) -> int:
        """The number of buckets that were gathered, the head among them."""
        return len(self._slots) + len(self._gathered)

    @property
    def room(self) -> bool:
        """Always: each has a row of its own."""
        return True

    def stage(self, number: int, index: int) -> None:
        """Nothing: a device gathers a bucket at once."""

    def poll(self) -> None:
        """See ``OpenAttempt``. Also send what may be sent by now. Waits for nothing."""
        super().poll()
        self._forward()
        while self._succeeded < len(self._bulks) and self._bulks[self._succeeded].work.wait(0.0):
            self._succeeded += 1

    def begin(self) -> None:
        """Gather the next bucket, or begin the head's operation."""
        number = self.begun
        if number == 0:
            super().begin()
            return
        bucket = self.call.layout.buckets[number]
        self.call.provide(bucket)
        self._gathered.append(self._gather(bucket) if bucket.place else None)
        self._forward()

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:  # noqa: ARG002 - all of it is under way
        """See ``OpenAttempt.run``."""
        if self.failure is not None:
            raise self.failure
        if not self.void:
            self._computed = True
            while self.begun < self.count:
                self.begin()
        while self._trailer is None and self._window:
            self._reap_next()
        if self.void:
            raise GroupError("a gradient changed after it was sent")
        self._forward()
        for place in dict.fromkeys(slot.bucket.place for slot, _ in self._staged if slot.bucket.place):
            device_at(place).awaited()
        while self._staged:
            slot, copies = self._staged[0]
            self._window.appendleft((copies, slot))
            self._end_oldest()
            self._begin_staged(self._group)
        while self._window:
            self._reap()
        accelerated, trailer = self._end_bulks(), self._trailer
        assert trailer is not None
        self.session.received(accelerated=trailer.accelerated)
        trailer, results = self._ended(self._slots)
        return trailer, results.carried(accelerated=accelerated or self.call.accelerated)

    def _gather(self, bucket: Bucket) -> _Gathered:
        device, ready = device_at(bucket.place), self.record.flags & Flag.READY
        row = room_for(bucket, self._group) if ready else None
        bulk = row is not None
        if row is None:
            row = device.empty(bucket.count, bucket.dtype)
        self.call.gather(bucket, row, self._assumed)
        return _Gathered(row, device.record(), bulk)

    def _forward(self) -> None:
        """Send on what was gathered, and what has come to CPU memory by now. Waits for nothing before the end of backward."""
        trailer, group = self._trailer, self._group
        if trailer is None or (trailer.accelerated and not (self._computed or group.launches_at_once)):
            return
        while self._gathered:
            slot, gathered = self._staging.slot(len(self._slots), 0), self._gathered.popleft()
            self._slots.append(slot)
            if gathered is None:
                self.call.fill(slot, self._assumed)
                self._staged.append((slot, NothingToDo()))
            elif trailer.accelerated and gathered.bulk:
                self._launch_row(slot, gathered)
            else:
                self._staged.append((slot, lower(slot, gathered.row, gathered.end)))
        while self._staged and self._staged[0][1].wait(0.0):
            self._begin_staged(group)

    def _launch_row(self, slot: Slot, gathered: _Gathered) -> None:
        """On a stream that waits for nothing but the row: the program's has got further by now."""
        device = device_at(slot.bucket.place)
        with device.ahead():
            device.follow(gathered.end)
            slot.stage(gathered.row)
            self._bulks.append(Bulk(self._group, [slot], asked=self.call.veto))
