"""By what the tensors on devices are reduced: one line in the log whenever that changes, and why."""

from __future__ import annotations

from consensus import CarefulLogger

from ..calls.call import Call
from ..calls.session import Session
from ..plane.plane import Plane
from ..tensors.trailer import Flag, Trailer

logger = CarefulLogger("ftlib")


class Transport:
    """Owned by the training thread."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._accelerated = False

    def note(self, call: Call, session: Session, trailer: Trailer, *, accelerated: bool) -> None:
        """A call with tensors on devices was finished here.

        One that accelerators could have carried, but for its dtypes, is no change: a program may make such calls at every step.
        """
        unfit = trailer.accelerated and not accelerated and call.layout.places
        if accelerated == self._accelerated or unfit:
            return
        self._accelerated = accelerated
        without = [rank for rank, slot in enumerate(trailer.slots) if not slot.flags & Flag.READY]
        by = session.names(session.members_of(without))
        if accelerated:
            text = "the accelerators of all members work"
        elif session.group is None:
            text = "there are no other members"
        else:
            text = f"no accelerator at {by} in this view" if by else "nobody had said yet in this view that all work"
        name = "accelerators" if accelerated else "the CPU"
        extra = self._plane.about("transport", call=call.number, accelerated=accelerated, without=by)
        logger.info("from call %d on, tensors on devices go by %s: %s", call.number, name, text, extra=extra)
