"""Calls within a unit: begun at once, awaited when their results are wanted, or at the unit's end.

Each is a row of operations on buffers of its own. They have to begin with an operation whose size all members know alike
(see ``attempt``). Outside of units that is the head of the call before. Here several are under way at a time, and a prelude
for each would make them wait for each other; so the size is that of the call in the same place of the unit before (its
*script*). In a loop, whose units do the same, nobody waits; who does something else finds out in a prelude, before it sends any
of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from ...frameworks.base import Operation, OperationKind
from ...status import Status
from ..calls.attempt import BARE, Attempt
from ..calls.call import Call, Results
from ..tensors.layout import Layout
from ..tensors.staging import Slot, Staging
from ..tensors.trailer import RankRecord


class Inner(Attempt):
    """The operations of one call within a unit."""

    def begin(self, expected: Layout | None) -> None:
        """Start them all; ``expected``: what this place of the unit had before, at all members. GroupError if one fails."""
        call, session = self._call, self._session
        layout, codec, group = call.layout, session.codec, session.group
        assert group is not None
        record = RankRecord(call.weight, 0, 0, layout.check)
        if expected is None or expected.signature != layout.signature:
            self._prelude(BARE if expected is None else expected.head, record)
        self._slots: list[Slot] = []
        for number, bucket in enumerate(layout.buckets):
            slot = self._staging.slot(number, codec.elements)
            call.fill(slot)
            if number == 0:
                codec.write(slot.trailer, record, bucket.op)
            self._window.append((group.submit(Operation(OperationKind.ALLREDUCE, slot.flat, bucket.op)), slot))
            self._slots.append(slot)

    def end(self) -> Results:
        """Wait for them. GroupError if one failed."""
        while self._window:
            self._reap()
        assert self._trailer is not None
        return Results(self._call.number, self._call.layout, self._slots, self._trailer.weight, self._finite)

    def free(self, buffers: Buffers) -> None:
        """The results were read."""
        buffers.give(self._staging)


class Buffers:
    """Staging for calls within units: each has its own until its result was read. Owned by the training thread."""

    _KEPT = 256
    """Layouts with idle buffers; a function that never repeats itself fills no memory."""

    def __init__(self) -> None:
        self._idle: defaultdict[bytes, list[Staging]] = defaultdict(list)

    def take(self, layout: Layout) -> Staging:
        """One that nobody uses."""
        idle = self._idle[layout.signature]
        return idle.pop() if idle else Staging(layout, 0)

    def give(self, staging: Staging) -> None:
        """It is in no use any more."""
        if len(self._idle) > self._KEPT:
            self._idle.clear()
        self._idle[staging.layout.signature].append(staging)


class PendingCall:
    """A call within a unit that was begun with ``wait=False``."""

    def __init__(self, end: Callable[[PendingCall], Status], call: Call, inner: Inner | None) -> None:
        """``end``: waits for it, and delivers its result. ``inner``: None where this worker is alone."""
        self.call = call
        self.inner = inner
        self._end = end
        self._status: Status | None = None

    def __repr__(self) -> str:
        return f"<{self.call}: {'under way' if self._status is None else self._status.name}>"

    def wait(self) -> Status:
        """Wait for the result; once this has returned it is where it belongs. The end of the unit waits for what nobody has.

        Raises GroupError where a member was lost: let it pass through, and the function is run again.
        """
        if self._status is None:
            with torch.inference_mode(mode=False), torch.no_grad():
                self._status = self._end(self)
        return self._status
