"""Who brought inf or nan into an average that nobody applied: found out and told, here and to the others."""

from __future__ import annotations

import logging

from ..calls.call import Call
from ..calls.session import Session
from ..tensors.trailer import Trailer
from .plane import Plane

__all__ = ["NonfiniteCheck"]

logger = logging.getLogger("ftlib")


class NonfiniteCheck:
    """What is known of the call before, where it was vetoed. Owned by the training thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._vetoed = ""
        """The call before, where nobody has said yet because of whom."""
        self.tainted = False
        """Whether it was because of this member, which the next call's trailer tells the others."""
        self.asks = False
        """Whether the next call's trailer tells something of it, here or to the others."""

    def finished(self, session: Session, trailer: Trailer) -> None:
        """The next call was finished: its trailer tells because of whom."""
        self.tainted = self.asks = False
        if self._vetoed:
            self._blame(session.names(session.members_of(trailer.tainted)))

    def missed(self) -> None:
        """The next call's result was adopted: the trailer that would tell was not seen here."""
        self.tainted, self._vetoed, self.asks = False, "", False

    def explain(self, call: Call, session: Session) -> None:
        """``call`` was vetoed. Only who brought inf or nan can tell where."""
        self._plane.counters.vetoed += 1
        spoilt = call.spoilt()
        self.tainted, self.asks = bool(spoilt), True
        if spoilt:
            shown = ", ".join(call.name(index) for index in spoilt[:8]) + (" and more" if len(spoilt) > 8 else "")
            name = session.name(session.member_id)
            extra = self._plane.about("vetoed", call=call.number, tensors=shown)
            logger.warning("%s is applied by nobody: inf or nan at this worker, %s, in %s", call, name, shown, extra=extra)
        elif session.size > 1:
            self._vetoed = str(call)

    def _blame(self, names: str) -> None:
        vetoed, self._vetoed = self._vetoed, ""
        whose = f"inf or nan at {names}" if names else "the sum overflowed, or whoever had inf or nan is gone"
        logger.warning("%s was applied by nobody: %s", vetoed, whose, extra=self._plane.about("vetoed_elsewhere", by=names))
