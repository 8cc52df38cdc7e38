"""One attempt at a call with tensors on devices: by the group, through CPU memory, or by the accelerators of all members.

The head has no data and goes by the group. Its trailer says whose accelerators work; so all members decide alike, in the very
call, and without a message. Everything else begins after the head has ended: then all members are in this call, and no
earlier result is needed any more. The host waits once: for the copies to CPU memory, or for the accelerator.
"""

from __future__ import annotations

from ...frameworks.base import Group
from ..tensors.trailer import Flag, RankRecord, Trailer
from .attempt import Attempt
from .call import Kind, Results

GLOO_SPEED = 1e9
"""Bytes a second: about what a call by the group costs. So long its first call may wait for an accelerator that starts."""


class DeviceAttempt(Attempt):
    """See ``Attempt``."""

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:
        """See ``Attempt.run``."""
        session, call, layout, window = self._session, self._call, self._call.layout, self._window
        group = session.group
        assert group is not None
        if call.kind is Kind.AVERAGE:
            self._assumed = session.divisor
        if session.expected is None:
            self._await_accelerator(group)
        if group.accelerated:
            record = record._replace(flags=record.flags | Flag.READY)
        slots = {0: self._begin_head(group, record)}
        self._reap()
        trailer = self._trailer
        assert trailer is not None
        bulk = self._launch(group, accelerated=trailer.accelerated)
        slots |= self._carry(group, [number for number in range(1, len(layout.buckets)) if number not in bulk], in_flight)
        while window:
            self._reap()
        accelerated = self._end_bulks()
        session.received(accelerated=trailer.accelerated)
        trailer, results = self._ended([(slots | bulk)[number] for number in range(len(layout.buckets))])
        return trailer, results.carried(accelerated=accelerated or call.accelerated)

    def _await_accelerator(self, group: Group) -> None:
        """In a session's first call: wait for an accelerator that starts, never longer than the call by the group takes."""
        start = group.accelerator_start(self._call.layout.nbytes / GLOO_SPEED)
        if start is not None:
            self.wait(start, None)
