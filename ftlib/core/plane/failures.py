"""Handling of failed calls: report the failure first, then abort the group, so that nobody waits for it.

The order matters: errors from an aborted group put the blame on healthy peers.
"""

from __future__ import annotations

from consensus import CarefulLogger, Consensus

from ...errors import Excluded, GroupError, StepMismatch
from ..calls.attempt import Disagreement
from ..calls.call import Call
from ..calls.session import Session
from .orders import Order
from .plane import Plane
from .rebuild import Rebuilder

logger = CarefulLogger("ftlib")


class Failures:
    """Handles the failed calls of one lifetime. Used by the thread that carries out the calls."""

    def __init__(self, plane: Plane, consensus: Consensus, rebuilder: Rebuilder) -> None:
        self._plane = plane
        self._consensus = consensus
        self._rebuilder = rebuilder

    def report(self, call: Call, session: Session, error: GroupError) -> None:
        """An operation of ``call`` failed in ``session``: report it to the others, and abort the group."""
        plane = self._plane
        with plane.changed:  # report before any thread can see the freeze: the consensus relies on that order
            if isinstance(error, Disagreement):
                session.blame(error.blamed, error.dispute)  # part of the flush report
            first, order = plane.failed(session)
            if first:
                self._consensus.average_failure(call.number, session.members_of(error.peers))
        if first:
            logger.debug("%s failed in %s: %s", call, session, error, extra=plane.about("call_failed", call=call.number))
        self._abort(session, order)
        if isinstance(error, Disagreement):
            logger.error("%s", error, extra=plane.about("mismatch", call=call.number))
            if plane.member_id in error.blamed:
                self.stop(StepMismatch(str(error)))

    def withdraw(self, session: Session) -> None:
        """No member was in the call, and nothing failed: carry out a freeze that waited for the call's end, if any."""
        _, order = self._plane.failed(session, begun=False)
        if order is not None:
            self._rebuilder.order(order)

    def abandon(self) -> None:
        """This thread leaves its call by an exception: make sure that no member waits for it there."""
        plane = self._plane
        with plane.changed:  # see ``report``
            number = plane.finished + 1
            session, order = plane.abandon()
            if session is not None:
                self._consensus.average_failure(number, ())
        self._abort(session, order)

    def undelivered(self, call: Call, error: BaseException) -> None:
        """``error`` ends ``call``. If it was finished but not delivered here, this member differs from the others: stop."""
        if self._plane.current is None and 0 < call.number <= self._plane.finished:
            text = f"{call} was finished, but its result could not be delivered here ({type(error).__name__})"
            self.stop(Excluded(f"{text}: start this worker anew, as a joiner"))

    def stop(self, error: Exception) -> None:
        """End this lifetime because of ``error``."""
        group = self._plane.stop(error)
        if group is not None:
            group.abort()
        order = self._plane.unpark()
        if order is not None:
            self._rebuilder.order(order)
        self._consensus.leave()

    def _abort(self, session: Session | None, order: Order | None) -> None:
        if session is not None and session.group is not None:
            session.group.abort()
        if order is not None:
            self._rebuilder.order(order)
