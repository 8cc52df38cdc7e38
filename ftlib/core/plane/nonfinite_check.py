"""Finds the members that brought inf or nan into an average that nobody applied; logs them here and at the others."""

from __future__ import annotations

from consensus import CarefulLogger

from ..calls.call import Call
from ..calls.session import Session
from ..tensors.trailer import Trailer
from .plane import Plane

logger = CarefulLogger("ftlib")


class NonfiniteCheck:
    """What is known of the previous call, if it was vetoed. Owned by the training thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._vetoed = ""
        """The previous call, if it was vetoed by members that are not known yet; else empty."""
        self.tainted = False
        """True if the veto was caused by this member; the next call's trailer notifies the others."""
        self.asks = False
        """True if the next call's trailer carries the cause of the veto, to this member or from it."""

    def finished(self, session: Session, trailer: Trailer) -> None:
        """The next call was finished: its trailer names the members that caused the veto."""
        self.tainted = self.asks = False
        if self._vetoed:
            self._blame(session.names(session.members_of(trailer.tainted)))

    def missed(self) -> None:
        """The next call's result was adopted: this member did not see the trailer that names them."""
        self.tainted, self._vetoed, self.asks = False, "", False

    def explain(self, call: Call, session: Session, *, elsewhere: bool = False) -> None:
        """``call`` was vetoed. Only the member that brought inf or nan knows in which tensors. ``elsewhere``: in another shard,
        whose members say it.
        """
        self._plane.counters.vetoed += 1
        if elsewhere:
            return
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
