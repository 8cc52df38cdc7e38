"""What is done where a call fails: the others are told first, then the group is aborted, so that nobody waits for it.

In that order, since an aborted group makes healthy peers look guilty.
"""

from __future__ import annotations

import logging

from consensus import Consensus

from ...errors import Excluded, GroupError, StepMismatch
from ..calls.attempt import Disagreement
from ..calls.call import Call
from ..calls.session import Session
from .orders import Order
from .plane import Plane
from .rebuild import Rebuilder

__all__ = ["Failures"]

logger = logging.getLogger("ftlib")


class Failures:
    """Of the calls of one lifetime. Used by the thread that carries them out."""

    def __init__(self, plane: Plane, consensus: Consensus, rebuilder: Rebuilder) -> None:
        self._plane = plane
        self._consensus = consensus
        self._rebuilder = rebuilder

    def report(self, call: Call, session: Session, error: GroupError) -> None:
        """An operation of ``call`` failed in ``session``: tell the others, and abort the group."""
        plane = self._plane
        with plane.changed:  # told before anybody can see the freeze: the consensus relies on that order
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
        """Nobody was in the call, and nothing failed: a freeze that waited for its end takes place."""
        _, order = self._plane.failed(session, begun=False)
        if order is not None:
            self._rebuilder.order(order)

    def abandon(self) -> None:
        """This thread leaves its call by an exception: nobody may wait for it there."""
        plane = self._plane
        with plane.changed:  # see ``report``
            number = plane.finished + 1
            session, order = plane.abandon()
            if session is not None:
                self._consensus.average_failure(number, ())
        self._abort(session, order)

    def undelivered(self, call: Call, error: BaseException) -> None:
        """``call`` is left by ``error``. Finished by all, and not delivered here? This member differs from the others then."""
        if self._plane.current is None and 0 < call.number <= self._plane.finished:
            text = f"{call} was finished, but its result could not be delivered here ({type(error).__name__})"
            self.stop(Excluded(f"{text}: start this worker anew, as a joiner"))

    def stop(self, error: Exception) -> None:
        """End this lifetime because of ``error``."""
        group = self._plane.stop(error)
        if group is not None:
            group.abort()
        self._consensus.leave()

    def _abort(self, session: Session | None, order: Order | None) -> None:
        if session is not None and session.group is not None:
            session.group.abort()
        if order is not None:
            self._rebuilder.order(order)
