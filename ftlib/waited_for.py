"""What a call waits for, and for whom: the words of its warnings and errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from consensus import LeftError

from .average import SETTLE
from .call import Call
from .errors import GroupError, RebuildTimeout
from .logs import about
from .patience import Patience
from .phase import Phase
from .plane import Plane
from .session import Session

__all__ = ["Limits", "blocking", "phase_text", "watch"]

logger = logging.getLogger("ftlib")


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, and ``min_size`` members below which calls wait."""

    step_timeout: float = 600.0
    min_size: int = 1
    may_be_spare: bool = False
    """Whether this member may have to wait for room in the view; as long as it takes, since the job answers meanwhile."""
    drain_patience: float = 5.0
    """For how long a worker that has to go waits for a view change to end."""
    veto: bool = True
    """Whether averages with inf or nan are applied by nobody."""
    held: int = 0
    """Bytes of averages that this member may hold where it follows the others; 0 if it never does."""


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
        session, peers, current = plane.session, dict(plane.peers.places), plane.current
    if session is None:
        return "no view is active at this worker"
    number = current.number if current is not None else 0
    absent = [m for m in session.view.ids if m != plane.member_id and max(peers.get(m, (0, 0))) < number]
    if not absent:
        return f"the members of {session.view} have all entered the call"
    return f"waiting for {session.names(absent)}, not in this call yet"


def watch(
    plane: Plane,
    limits: Limits,
    call: Call,
    session: Session,
    patience: Patience,
    confirmed: Callable[[], bool],
    waited: float,
) -> None:
    """One operation of ``call`` has taken ``waited`` seconds. GroupError where its group was given up; RebuildTimeout.

    ``confirmed``: whether the view is undisputed. LeftError where it is not, no other comes, and this worker has to go.
    """
    with plane.changed:
        over = plane.session is not session or plane.phase is not Phase.ACTIVE
    if over and waited > SETTLE:
        raise GroupError("the group was given up, but this operation does not end")
    if plane.leaving() and waited > limits.drain_patience and not confirmed():
        raise LeftError("asked to leave, and there is no quorum for a view in which this call could end")
    if plane.threads.now() > patience.deadline:
        raise RebuildTimeout(f"{call}: not finished within {limits.step_timeout:g} s; {blocking(plane)}")
    long = patience.due()
    if long is not None:
        extra = about(plane, "waiting", call=call.number, waited_seconds=long)
        logger.warning("%s: waiting for %.0f s; %s", call, long, blocking(plane), extra=extra)
