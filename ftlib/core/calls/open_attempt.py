"""An open call's operations in the session in which it was entered: begun one by one, beside the program's computing."""

from __future__ import annotations

from ...errors import GroupError
from ..tensors.staging import Slot, Staging
from ..tensors.trailer import RankRecord, Region, Trailer
from .attempt import BARE, Attempt, CallDeclined, EnteredObserver, Waits
from .call import Results
from .open_call import OpenCall
from .session import Session


class OpenAttempt(Attempt):
    """See ``Attempt``. Its layout is the one that all members expect; a session's first call begins with the prelude that all
    members of a new session make.
    """

    def __init__(
        self,
        call: OpenCall,
        session: Session,
        staging: Staging,
        waits: Waits,
        record: RankRecord,
        plane: EnteredObserver | None = None,
    ) -> None:
        """``record``: this member's, for the head. The rest: see ``Attempt``."""
        super().__init__(call, session, staging, waits, plane)
        self.call = call
        self.session = session
        self.failure: GroupError | None = None
        """Why it failed, as was reported; None while it has not."""
        self.void = False
        """True if an input has changed after it was staged."""
        self.record = record
        self.count = len(call.layout.buckets)
        """The number of operations in all."""
        self._assumed = session.divisor
        self._slots: list[Slot] = []
        """Those of the buckets whose operations were begun."""
        self._asked = False
        """True once the prelude was begun."""
        self._said: Region | None = None
        """What the members say in it, while it is under way."""

    @property
    def begun(self) -> int:
        """The number of operations that were begun."""
        return len(self._slots)

    @property
    def room(self) -> bool:
        """True if another bucket may be staged: before the first operation has ended, others may need this member's results;
        and before the end of a prelude some may be in another call.
        """
        return self._said is None and (self._trailer is not None or len(self._slots) < self._staging.spares)

    def fail(self, error: GroupError) -> None:
        """Note that it failed."""
        if self.failure is None:
            self.failure = error

    def drop(self) -> None:
        """An input has changed after it was staged."""
        self.void = True

    def meet(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until all members are in the call. GroupError if they cannot be any more."""
        if self._trailer is None and self._window and self._window[0][0].wait(timeout):
            self._reap_next()

    def poll(self) -> None:
        """Look at the operations that have ended by now, in order. GroupError if one failed."""
        while self._window and self._window[0][0].done():
            self._reap_next()

    def stage(self, number: int, index: int) -> None:
        """The gradient of parameter ``index`` is complete, the rest of bucket ``number`` is not: stage it, if nobody needs any
        more what was in the slot. GroupError if an operation has failed.
        """
        if self._trailer is None:
            self.poll()
        if self._trailer is not None and not self.void and self.call.layout.compression is None:
            self.call.stage(self._staging.slot(number, self._session.codec.elements), index, self._assumed)

    def begin(self) -> None:
        """Stage the next bucket, and begin its operation; in the first call of a session the prelude, once. There has to be
        ``room``.
        """
        number, session = len(self._slots), self._session
        assert session.group is not None
        if session.expected is None and not self._asked:
            self._asked, self._said = True, self._say(BARE, self.record)
            return
        slot = self._staging.slot(number, session.codec.elements)
        self.call.provide(slot.bucket)
        if self._trailer is not None and self.call.layout.compression is not None:
            self._assumed = self._trailer.divisor  # see ``compressed_attempt``
        self.call.fill(slot, self._assumed, but=self.call.ahead(slot.bucket))
        if number == 0:
            session.codec.write(slot.trailer, self.record, slot.bucket.op)
        self._window.append((self._begin_operations(number, slot), slot))
        self._slots.append(slot)

    def run(self, record: RankRecord, in_flight: int) -> tuple[Trailer, Results]:  # noqa: ARG002 - all of it is under way
        """All gradients are there: begin what is left, and wait for everything. GroupError if an operation failed."""
        if self.failure is not None:
            raise self.failure
        if self.void:
            # Not before: somebody may still be in the call before, with operations of the same group. The operations of
            # compressed buckets wait for those of others, which are not begun any more: there the head's end is enough.
            while self._window and (self._trailer is None or self._pipeline is None):
                self._reap_next()
            raise GroupError("a gradient changed after it was sent")
        while len(self._slots) < self.count:
            if not self.room:
                self._reap_next()
            self.begin()
        while self._window:
            self._reap()
        return self._ended(self._slots)

    def _reap_next(self) -> None:
        """As ``_reap``; the oldest operation may be the prelude."""
        if self._said is None:
            self._reap()
        else:
            said, self._said = self._said, None
            try:
                self._hear(said)
            except CallDeclined as reason:  # more of the call may be under way, which others do not join: so it fails
                raise GroupError(str(reason)) from None
