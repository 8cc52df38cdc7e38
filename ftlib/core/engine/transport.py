"""By what the tensors on devices are reduced: one line in the log whenever that changes, and why."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..calls.call import Call
from ..calls.session import Session
from ..plane.plane import Plane
from ..tensors.trailer import Flag, Trailer

__all__ = ["Transport"]

logger = logging.getLogger("ftlib")


class Transport:
    """Owned by the training thread."""

    def __init__(self, plane: Plane, count: Callable[[bool], None]) -> None:
        """``count``: called after each call; True if accelerators carried it."""
        self._plane = plane
        self._count = count
        self._accelerated = False

    def note(self, call: Call, session: Session, trailer: Trailer, *, accelerated: bool) -> None:
        """A call with tensors on devices was finished here."""
        self._count(accelerated)
        nothing_to_carry = trailer.accelerated and not accelerated and call.layout.places
        if accelerated == self._accelerated or nothing_to_carry:
            return
        self._accelerated = accelerated
        if accelerated:
            text, by = "the accelerators of all members work", ""
        else:
            without = [rank for rank, slot in enumerate(trailer.slots) if not slot.flags & Flag.READY]
            by = session.names(session.members_of(without))
            text = f"no accelerator at {by} in this view" if by else "they had not all said that theirs work before this call"
        name = "accelerators" if accelerated else "the CPU"
        extra = self._plane.about("transport", call=call.number, accelerated=accelerated, without=by)
        logger.info("from call %d on, tensors on devices go by %s: %s", call.number, name, text, extra=extra)
