"""Whether a worker that was given notice stays for a while, as the state would be gone with it.

It stays while it is the only member of its view that has the state, and another one is on its way: a member that is getting the
state, a joiner that asks to be let in, a worker that its launcher says it starts, or, where no launcher says anything, one that
was lost a moment ago. It trains on meanwhile, as if there had been no notice, so that the others get the state as ever. Once
one of them has it, or nobody is expected any more, or at the deadline, its next call says goodbye.

The question is asked when a trailer is written, and not before: the view may have shrunk since the notice. Nothing here takes
back a goodbye that others may have read: that binds this member for good (docs/protocol.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ..calls.session import Session
from ..plane.phase import Phase
from ..plane.plane import Plane

LAST_MOMENT = 1.0
"""Seconds before the end of a stay from which on a checkpoint may be written: then it is one before the last call."""


class Handover:
    """The one of a process, for all its lifetimes. Any thread, and signal handlers: it takes no lock."""

    def __init__(self, plane: Callable[[], Plane], patience: float, *, launched: bool = False) -> None:
        """``plane``: returns that of the present lifetime. ``patience``: seconds that it stays at most after a notice that says
        nothing else; 0: it never does. ``launched``: True if a launcher can be asked who is coming.
        """
        self._plane = plane
        self._patience = patience
        self._began = self._until = -math.inf
        self._word: bool | None = True if launched else None
        """What the launcher says: whether somebody is coming. None: nobody says anything. True until it has been asked."""

    def begin(self, within: float | None = None) -> None:
        """There is a notice. ``within``: seconds that this worker has, if whoever gave the notice says so."""
        self._began = self._plane().threads.now()
        self._until = self._began + (self._patience if within is None else within)

    def answered(self, coming: bool | None) -> None:
        """The launcher's word; None if it does not know, or there is none."""
        self._word = coming

    @property
    def alone(self) -> bool:
        """True if this member has the state, and no other member of its view does."""
        plane = self._plane()
        session = plane.session
        trained = plane.has_state and plane.level and plane.finished > 0
        return trained and session is not None and plane.phase is not Phase.STOPPED and not others_with_state(plane, session)

    @property
    def stays(self) -> bool:
        """True while this worker goes on though it has to leave."""
        return self.left > 0 and self.alone and self._awaited()

    @property
    def expired(self) -> bool:
        """True if this worker would stay if there were time left, more than a moment."""
        return self.left <= LAST_MOMENT and self.alone and self._awaited()

    @property
    def left(self) -> float:
        """Seconds that it stays at most."""
        return self._until - self._plane().threads.now()

    def _awaited(self) -> bool:
        plane = self._plane()
        session = plane.session
        if plane.boundary_requested or plane.phase is Phase.FROZEN or (session is not None and session.size > 1):
            return True
        if self._word is not None:
            return self._word
        return plane.peers.lost_since(self._began - self._patience)


def others_with_state(plane: Plane, session: Session) -> bool:
    """True if another member of ``session`` has the state: as the trailer of its newest call says, or before that the plan."""
    trailer, own = plane.trailer, session.rank
    if trailer is None or len(trailer.slots) != session.size:
        return any(member_id != session.member_id for member_id in session.plan.holders)
    # A late member has the state, but for calls whose results its backup worker keeps.
    return any(rank != own and not slot.lacks_state for rank, slot in enumerate(trailer.slots))
