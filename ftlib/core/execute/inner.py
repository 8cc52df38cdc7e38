"""Calls within a unit: begun at once, awaited when their results are wanted, or at the unit's end.

Each call is a row of operations on its own buffers. Its first operation needs a size that all members know (see ``attempt``).
Outside of units that is the size of the previous call's head. Within a unit several calls are under way at a time, and a
prelude for each would make them wait for each other. So the size is that of the call in the same place of the previous unit
(its *script*). In a loop whose units do the same nobody waits. A member that does something else finds out in a prelude, before
it sends any of its data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from ...status import Status
from ..calls.attempt import BARE, Attempt
from ..calls.call import Call, Results
from ..tensors.layout import Layout
from ..tensors.staging import Allocate, Staging
from ..tensors.trailer import RankRecord


class Inner(Attempt):
    """The operations of one call within a unit."""

    def begin(self, expected: Layout | None, *, accelerated: bool) -> None:
        """Start all operations. ``expected``: the layout that all members had in this place of the previous unit.

        ``accelerated``: True if all members' accelerators worked at the end of that unit. GroupError if an operation fails.
        """
        call, session = self._call, self._session
        layout, codec, group = call.layout, session.codec, session.group
        assert group is not None
        record = RankRecord(call.weight, 0, 0, layout.check)
        if expected is None or expected.signature != layout.signature:
            self._prelude(BARE if expected is None else expected.head, record)
        carried = self._launch(group, accelerated=accelerated and bool(layout.places))
        head = self._filled(0)  # no earlier result is in these slots
        codec.write(head.trailer, record, head.bucket.op)
        self._submit(group, head)
        rest = [number for number in range(1, len(layout.buckets)) if number not in carried]
        slots = {0: head} | carried | self._carry(group, rest, in_flight=len(layout.buckets) + 1)
        self._slots = [slots[number] for number in range(len(layout.buckets))]

    def end(self) -> Results:
        """Wait for all operations. GroupError if one failed."""
        while self._window:
            self._reap()
        assert self._trailer is not None
        accelerated = self._end_bulks()
        results = Results(self._call.number, self._call.layout, self._slots, self._trailer.weight, self._finite)
        return results.carried(accelerated=accelerated)

    def free(self, buffers: Buffers) -> None:
        """The results were read: give the staging back."""
        buffers.give(self._staging)


class Buffers:
    """Staging for calls within units: each call has its own until its result was read. Owned by the training thread."""

    _KEPT = 256
    """Number of layouts with idle buffers, so that a function that never repeats itself does not fill the memory."""

    def __init__(self, allocate: Allocate) -> None:
        """``allocate``: see ``Framework``."""
        self._allocate = allocate
        self._idle: defaultdict[bytes, list[Staging]] = defaultdict(list)

    def take(self, layout: Layout) -> Staging:
        """A staging for ``layout`` that no call uses."""
        idle = self._idle[layout.signature]
        return idle.pop() if idle else Staging(layout, 0, self._allocate)

    def give(self, staging: Staging) -> None:
        """``staging`` is not in use any more."""
        if len(self._idle) > self._KEPT:
            self._idle.clear()
        self._idle[staging.layout.signature].append(staging)


class PendingCall:
    """A call within a unit that was begun with ``wait=False``."""

    def __init__(self, end: Callable[[PendingCall], Status], call: Call, inner: Inner | None) -> None:
        """``end``: waits for the call, and delivers its result. ``inner``: None if this worker is alone."""
        self.call = call
        self.inner = inner
        self._end = end
        self._status: Status | None = None

    def __repr__(self) -> str:
        return f"<{self.call}: {'under way' if self._status is None else self._status.name}>"

    def wait(self) -> Status:
        """Wait for the result, and write it to the call's tensors. The unit's end does so for calls that nobody waited for.

        Raises GroupError if a member was lost: let it pass through, and the function is run again.
        """
        if self._status is None:
            with torch.inference_mode(mode=False), torch.no_grad():
                self._status = self._end(self)
        return self._status
