"""One attempt at a call within one session: stage, reduce, and read the trailer. Runs on the training thread.

The first operation of every call has a size that all members know, whatever they are about to do: that of the head of the call
that they expect (see ``Session.expected``). (Gloo ends the whole *process* of a receiver whose buffer is too small, so a worker
with other tensors must be detected before it sends any.) A member whose call has another layout first takes part in a *prelude*
of that size. That costs one small operation where calls come in a new order, and nothing in a loop that repeats them.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import torch

from ...common.devices import device_at
from ...errors import GroupError
from ...frameworks.base import Group, Operation, OperationKind, Work
from ..tensors.compression.pipeline import Pipeline
from ..tensors.compression.reduction import Part
from ..tensors.device_copies import copies_of, send
from ..tensors.layout import Bucket, Layout
from ..tensors.staging import Slot, Staging
from ..tensors.trailer import Flag, RankRecord, Region, Trailer
from .bulk import Bulk, room_for
from .call import Call, Kind, Results
from .salvage import DISPUTES, blame
from .session import Session

SETTLE = 0.1
"""Seconds that operations of an aborted group get to end before their buffers are given up.

They end within milliseconds, except one in a hundred that Gloo never wakes; meanwhile the others wait for this member.
"""
WAIT_SLICE = 0.05
"""Seconds between checks of deadlines, signals and the session's end while an operation is under way."""

BARE = Bucket(torch.uint8, 0, "SUM", ())
"""A head without data: the first call of a session starts with it."""


UNKNOWN = Layout(b"", "", "a call of the others", (BARE,))
"""That of a call of which only the head's records are known."""


class CallDeclined(GroupError):
    """A member declines the call, and of the others' call only the first records are known: with these it has ended."""


class Disagreement(GroupError):
    """Members entered this call differently, in what ``dispute`` (of ``DISPUTES``) says. ``blamed``: ids of the members that
    have to stop.
    """

    def __init__(self, text: str, blamed: tuple[str, ...], dispute: str) -> None:
        super().__init__(text)
        self.blamed = blamed
        self.dispute = dispute


class Waits(Protocol):
    """Notified while an attempt waits."""

    now: Callable[[], float]

    def waited(self, call: Call, session: Session, seconds: float) -> None:
        """One operation of ``call`` has taken ``seconds`` so far. Raises an error to end the wait."""


class EnteredObserver(Protocol):
    """Notified once all members are in the call."""

    @property
    def needed(self) -> Sequence[Slot]:
        """The slots of the newest results, while a survivor may need them."""

    def entered(self) -> None:
        """An operation of the call has finished: all members are in it, hence have finished the previous call."""


class Attempt:
    """A call's operations in one session."""

    def __init__(
        self, call: Call, session: Session, staging: Staging, waits: Waits, plane: EnteredObserver | None = None
    ) -> None:
        """``waits``: notified every ``WAIT_SLICE`` of an operation. ``plane``: notified once all members are in the call."""
        self._call = call
        self._session = session
        self._staging = staging
        self._waits = waits
        self._plane = plane
        self._window: deque[tuple[Work, Slot | None]] = deque()
        self._trailer: Trailer | None = None
        self._finite = True
        self._assumed = 1.0
        """What each input is divided by as it is staged: in an average, the sum of the weights in the one before. All members
        of the session assume the same, so where it holds again the sums are the averages."""
        self._staged: deque[tuple[Slot, Work]] = deque()
        """Slots to which devices may still be copying, and what these do."""
        self._computed = True
        """False while the program still computes what goes into the call: nothing may be in the way of that then, so results go
        back to devices when they are delivered, and not beside the next operations."""
        self._bulks: list[Bulk] = []
        """What accelerators carry, in the order of its launches."""
        self._pipeline: Pipeline | None = None
        """The buckets of a compressed call, once all members are in it."""

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:
        """Carry out all operations. GroupError if one failed: then abort the group and ``settle``. CallDeclined if a member
        declines the call, and nothing of it is under way.
        """
        session, call, layout, window = self._session, self._call, self._call.layout, self._window
        group, expected, said = session.group, session.expected, None
        assert group is not None
        spares = self._staging.spares
        if call.kind is Kind.AVERAGE:
            self._assumed = session.divisor
        if expected is not layout and (expected is None or expected.signature != layout.signature):
            said = self._say(BARE if expected is None else expected.head, record)
        slots = []
        for number, bucket in enumerate(layout.buckets):
            if number and (len(window) == in_flight or (number == spares and self._trailer is None)):
                self._reap()
            slot = self._staging.slot(number, session.codec.elements)
            call.fill(slot, self._assumed)  # the head is staged beside a prelude, in a free slot
            if number == 0:
                session.codec.write(slot.trailer, record, bucket.op)
                if said is not None:
                    self._hear(said)
            window.append((group.submit(Operation(OperationKind.ALLREDUCE, slot.flat, bucket.op)), slot))
            slots.append(slot)
        while window:
            self._reap()
        return self._ended(slots)

    def declined(self) -> tuple[Trailer, Results]:
        """What the call has ended with if ``run`` raised CallDeclined: only the records are known."""
        session, call, trailer = self._session, self._call, self._trailer
        assert trailer is not None
        session.ended(UNKNOWN)  # not all members know its layout
        return trailer, Results(call.number, call.layout, (), trailer.weight, view_id=session.view.view_id, declined=True)

    def _ended(self, slots: Sequence[Slot]) -> tuple[Trailer, Results]:
        """All operations have ended, on these slots."""
        session, call, trailer = self._session, self._call, self._trailer
        assert trailer is not None
        layout, weight = call.layout, trailer.weight if call.kind is Kind.AVERAGE else 0.0
        if session.repeated is not layout or weight != session.divisor or call.script:  # else all stays as it is
            session.ended(layout, weight, call.script)
        assumed, view_id, declined = self._assumed, session.view.view_id, trailer.declined
        given = (call.number, layout, slots, trailer.weight, self._finite)
        return trailer, Results(*given, assumed=assumed, view_id=view_id, declined=declined, views=call.views)

    def _filled(self, number: int) -> Slot:
        """The slot of bucket ``number``, staged; from a device as soon as that has done it."""
        slot = self._staging.slot(number, self._session.codec.elements)
        self._call.fill(slot, self._assumed)
        return slot

    def _carry(self, group: Group, numbers: Iterable[int], in_flight: int) -> dict[int, Slot]:
        """Stage these buckets, and begin the operation of each, in order, as soon as it is staged; by the buckets' numbers.

        The host waits for each device once, when all has been enqueued.
        """
        slots = {}
        for number in numbers:
            slot = slots[number] = self._filled(number)
            self._staged.append((slot, copies_of(slot)))
            while self._staged and self._staged[0][1].wait(0.0) and self._may_begin(in_flight):
                self._begin_staged(group)
        for place in dict.fromkeys(slot.bucket.place for slot in slots.values() if slot.bucket.place):
            device_at(place).awaited()
        while self._staged:
            slot, copies = self._staged[0]
            self._window.appendleft((copies, slot))
            self._end_oldest()
            if len(self._window) == in_flight:
                self._reap()
            self._begin_staged(group)
        return slots

    def _may_begin(self, in_flight: int) -> bool:
        """Whether one more operation may be under way now."""
        if len(self._window) == in_flight:
            if not self._window[0][0].done():
                return False
            self._reap()
        return True

    def _begin_staged(self, group: Group) -> None:
        """Begin the operation on the slot that has been staged for longest."""
        slot, _ = self._staged.popleft()
        self._submit(group, slot)

    def _submit(self, group: Group, slot: Slot) -> None:
        """Begin the operation on a slot."""
        self._window.append((group.submit(Operation(OperationKind.ALLREDUCE, slot.flat, slot.bucket.op)), slot))

    def _begin_operations(self, number: int, slot: Slot) -> Work:
        """Begin the operation on a staged slot, or the operations if it is compressed."""
        session, layout, group = self._session, self._call.layout, self._session.group
        assert group is not None
        reduction = Operation(OperationKind.ALLREDUCE, slot.flat, slot.bucket.op)
        if layout.compression is None or number == 0:
            return group.submit(reduction)
        if self._pipeline is None:
            self._pipeline = Pipeline(group, [layout.stages if bucket.compressed else 1 for bucket in layout.buckets[1:]])
            owner = None if self._call.foreign or not self._call.owners else self._call.owners[0]
            many = sum(bucket.compressed for bucket in layout.buckets)
            self._staging.memory.begin(self._call.number, session.view.view_id, owner, many)
        if not slot.bucket.compressed:
            return self._pipeline.add(number - 1, functools.partial(iter, (reduction,)))
        parts = [Part(piece.offset, piece.offset + piece.stop - piece.start, piece.shape) for piece in slot.bucket.pieces]
        reduce = self._staging.memory.reduce
        steps = functools.partial(reduce, number, layout.compression, slot.host, parts, session.rank, session.size)
        return self._pipeline.add(number - 1, steps)

    def _launch(self, group: Group, *, accelerated: bool) -> dict[int, Slot]:
        """Have the accelerators carry what they take, if all members' work; returns these slots, by the buckets' numbers."""
        slots: dict[int, Slot] = {}
        if not accelerated:
            return slots
        call, layout = self._call, self._call.layout
        for number, bucket in enumerate(layout.buckets):
            if (row := room_for(bucket, group)) is not None:
                slots[number] = self._staging.slot(number, 0)
                call.fill(slots[number], self._assumed, row=row)
        # Others may launch them one by one: launched together they would be other operations, perhaps in another order.
        launches = [[slot] for slot in slots.values()] if layout.one_by_one else [list(slots.values())] if slots else []
        self._bulks += [Bulk(group, launch, asked=call.veto) for launch in launches]
        return slots

    def _end_bulks(self) -> bool:
        """Wait for what accelerators carry, and look for inf and nan in it. False if they carry nothing."""
        for bulk in self._bulks:
            self.wait(bulk.work, None)
            self._finite = bulk.end() and self._finite
        return bool(self._bulks)

    def wait(self, work: Work, slot: Slot | None) -> None:
        """Wait for one operation outside of ``run``; ``slot``: the slot on which it works."""
        self._window.append((work, slot))
        self._end_oldest()

    def settle(self, timeout: float) -> None:
        """After an abort: make sure that nothing writes into staging any more; abandon slots that may still be written to."""
        deadline = self._waits.now() + timeout
        self._window.extend((copies, slot) for slot, copies in self._staged)
        while self._window:
            work, slot = self._window.popleft()
            if not work.done():
                with contextlib.suppress(GroupError, RuntimeError):  # the latter is a device's
                    work.wait(max(0.0, deadline - self._waits.now()))
            if work.done():
                continue
            if slot is None:
                self._staging.abandon_prelude()
            else:
                self._staging.abandon(slot)
        for bulk in self._bulks:
            bulk.give_up(self._staging)

    def _begin_head(self, group: Group, record: RankRecord) -> Slot:
        """Begin the head's operation, after a prelude if not all members may expect this layout.

        As ``run`` does it in its loop, which most calls on the CPU run through, and so has no function for it.
        """
        session, layout = self._session, self._call.layout
        expected, said = session.expected, None
        if expected is not layout and (expected is None or expected.signature != layout.signature):
            said = self._say(BARE if expected is None else expected.head, record)
        slot = self._filled(0)  # staged beside the prelude, in a free slot
        session.codec.write(slot.trailer, record, slot.bucket.op)
        if said is not None:
            self._hear(said)
        self._submit(group, slot)
        return slot

    def _prelude(self, head: Bucket, record: RankRecord) -> None:
        self._hear(self._say(head, record))

    def _say(self, head: Bucket, record: RankRecord) -> Region:
        """Begin a prelude as large as ``head``. Returns the region that holds all rank records once the prelude has ended."""
        session = self._session
        assert session.group is not None
        buffer = self._staging.prelude(head.count + session.codec.elements, head.dtype)
        said = buffer[head.count :].numpy()
        session.codec.write(said, record, head.op)
        self._window.append((session.group.submit(Operation(OperationKind.ALLREDUCE, buffer, head.op)), None))
        return said

    def _hear(self, said: Region) -> None:
        """Wait for the prelude, the only operation under way, and check it. CallDeclined if a member declines the call."""
        self._end_oldest()
        trailer = self._session.codec.read(said)
        self._check(trailer)
        if self._plane is not None:
            self._plane.entered()
        if trailer.declined:
            self._trailer = trailer
            raise CallDeclined(f"{self._call} was declined")

    def _end_oldest(self) -> None:
        """Wait for the oldest operation, and remove it from the window."""
        work = self._window[0][0]
        if not work.wait(WAIT_SLICE):
            began = self._waits.now() - WAIT_SLICE
            while True:
                self._waits.waited(self._call, self._session, self._waits.now() - began)
                if work.wait(WAIT_SLICE):
                    break
        self._window.popleft()

    def _reap(self) -> None:
        """Wait for the oldest operation, read the trailer if it is the first one, and look for inf and nan."""
        slot = self._window[0][1]
        self._end_oldest()
        if self._trailer is None:
            assert slot is not None
            self._trailer = self._session.codec.read(slot.trailer)
            self._check(self._trailer)
            if self._plane is not None:
                self._plane.entered()
        if slot is not None and slot.bucket.place and self._computed and not self._call.foreign:
            send(slot)  # beside the next operations
        if self._call.veto and self._finite and slot is not None:
            # Check the result, not this member's input: its bits are equal everywhere, so all decide alike without a message.
            # Check it here, while the next operations are under way and the bucket is in the cache.
            self._finite = slot.check(norms=self._call.norms)

    def _check(self, trailer: Trailer) -> None:
        check, session = self._call.layout.check, self._session
        if all(slot.check == check or slot.flags & Flag.FOLLOWING for slot in trailer.slots):
            if trailer.draws:
                self._check_deal(trailer)
            return
        said = {rank: slot.check for rank, slot in enumerate(trailer.slots) if not slot.flags & Flag.FOLLOWING}
        blamed = self._blamed(said)
        own, (what, remedy) = session.name(session.member_id), DISPUTES["operations"]
        text = (
            f"members entered {self._call} {what} (this is what {own} entered{self._call.remark()}); it disagrees at "
            f"{session.names(blamed)}: {remedy}"
        )
        raise Disagreement(text, blamed, "operations")

    def _check_deal(self, trailer: Trailer) -> None:
        """All members must deal the samples alike, or some would be used twice and others never."""
        drawing = [(rank, slot) for rank, slot in enumerate(trailer.slots) if slot.data_epoch]
        for epoch in sorted({slot.data_epoch for _, slot in drawing}):  # a member may have begun the next data epoch
            said = {rank: slot.deal.to_bytes(2, "little") for rank, slot in drawing if slot.data_epoch == epoch}
            blamed = self._blamed(said)
            if not blamed:
                continue
            what, remedy = DISPUTES["samples"]
            text = f"members entered {self._call} {what}; it disagrees at {self._session.names(blamed)}: {remedy}"
            raise Disagreement(text, blamed, "samples")

    def _blamed(self, said: Mapping[int, bytes]) -> tuple[str, ...]:
        """Ids of the members that have to stop because ranks sent different values; empty if all are equal."""
        if len(set(said.values())) < 2:
            return ()
        session = self._session
        by_id = {session.by_rank[rank]: value for rank, value in said.items()}
        in_order = {member_id: by_id[member_id] for member_id in session.view.ids if member_id in by_id}
        return blame(in_order, session.plan.newcomers)
