"""Who brought inf or nan into an average that nobody applied: found out and told, here and to the others."""

from __future__ import annotations

import logging

from .call import Call
from .logs import about
from .plane import Plane
from .session import Session
from .trailer import Trailer

__all__ = ["Veto"]

logger = logging.getLogger("ftlib")


class Veto:
    """What is known of the call before, where it was vetoed. Owned by the training thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._vetoed = ""
        """The call before, where nobody has said yet because of whom."""
        self.tainted = False
        """Whether it was because of this member, which the next call's trailer tells the others."""

    def finished(self, session: Session, trailer: Trailer) -> None:
        """The next call was finished: its trailer tells because of whom."""
        self.tainted = False
        if self._vetoed:
            self._blame(session.names(session.members_of(trailer.tainted)))

    def missed(self) -> None:
        """The next call's result was adopted: the trailer that would tell was not seen here."""
        self.tainted, self._vetoed = False, ""

    def explain(self, call: Call, session: Session) -> None:
        """``call`` was vetoed. Only who brought inf or nan can tell where."""
        self._plane.counters.vetoed += 1
        spoilt = call.spoilt()
        self.tainted = bool(spoilt)
        if spoilt:
            shown = ", ".join(call.name(index) for index in spoilt[:8]) + (" and more" if len(spoilt) > 8 else "")
            name = session.name(session.member_id)
            extra = about(self._plane, "vetoed", call=call.number, tensors=shown)
            logger.warning("%s is applied by nobody: inf or nan at this worker, %s, in %s", call, name, shown, extra=extra)
        elif session.size > 1:
            self._vetoed = str(call)

    def _blame(self, names: str) -> None:
        vetoed, self._vetoed = self._vetoed, ""
        whose = f"inf or nan at {names}" if names else "the sum overflowed, or whoever had inf or nan is gone"
        logger.warning("%s was applied by nobody: %s", vetoed, whose, extra=about(self._plane, "vetoed_elsewhere", by=names))
