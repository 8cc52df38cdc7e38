"""What a call waits for, and for whom: the words of its warnings and errors."""

from __future__ import annotations

from dataclasses import dataclass

from .phase import Phase
from .plane import Plane

__all__ = ["Limits", "blocking", "phase_text"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, and ``min_size`` members below which calls wait."""

    step_timeout: float = 600.0
    min_size: int = 1
    may_be_spare: bool = False
    """Whether this member may have to wait for room in the view; as long as it takes, since the job answers meanwhile."""


def phase_text(plane: Plane, limits: Limits) -> str:
    """What a call is waiting in."""
    session = plane.session
    if plane.phase is Phase.ACTIVE and session is not None:
        return f"only {session.size} of at least {limits.min_size} members are there"
    if plane.phase is Phase.WAITING:
        return "not admitted to a view yet" + (" (a spare, above max_size)" if limits.may_be_spare else "")
    return "no new view"


def blocking(plane: Plane) -> str:
    """Whom this member waits for, as far as the others' pings tell."""
    with plane.changed:
        session, peers, current = plane.session, dict(plane.peers), plane.current
    if session is None:
        return "no view is active at this worker"
    number = current.number if current is not None else 0
    absent = [m for m in session.view.ids if m != plane.member_id and max(peers.get(m, (0, 0))) < number]
    if not absent:
        return f"the members of {session.view} have all entered the call"
    return f"waiting for {session.names(absent)}, not in this call yet"
