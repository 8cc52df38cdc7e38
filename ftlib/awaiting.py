"""The wait for a session to act in: its deadline, warnings that name who is waited for, its end where this worker leaves."""

from __future__ import annotations

import logging
import math

from consensus import LeftError

from .call import Call
from .errors import Excluded, JoinError, RebuildTimeout
from .follower import Recovery
from .logs import about
from .patience import WARN_AFTER, Patience
from .phase import Phase
from .plane import Plane
from .session import Session
from .waited_for import Limits, blocking, phase_text

__all__ = ["await_session"]

logger = logging.getLogger("ftlib")


def await_session(plane: Plane, call: Call, patience: Patience, limits: Limits, recovery: Recovery | None) -> Session | None:
    """The session to act in; None where too few members are there and it is time to tell the caller.

    Raises what ended this lifetime, RebuildTimeout at the deadline, and LeftError where there is none to act in and this
    worker has to go. ``recovery``: how a spare gets the state meanwhile.
    """
    since, spare = plane.threads.now(), False
    while True:
        with plane.changed:
            session = plane.session
            if plane.phase is Phase.STOPPED:
                raise _ended(plane)
            active = plane.phase is Phase.ACTIVE and session is not None
            spare, was_spare = plane.phase is Phase.WAITING and limits.may_be_spare, spare
            if spare or was_spare:  # for whoever was one, too: its time begins as it is admitted
                call.began = plane.threads.now()
                patience.deadline = call.began + limits.step_timeout
            if active and session is not None and session.size >= limits.min_size:
                return session
            until = math.inf
            if plane.leaving():  # a view change ends soon, and then this call can; nothing else may ever end
                until = since + limits.drain_patience if plane.phase is Phase.FROZEN else -math.inf
                if plane.threads.now() >= until:
                    raise LeftError("asked to leave while it waited for a view to act in")
            if spare and recovery is not None and recovery.trouble is not None:
                raise recovery.trouble
            left = patience.deadline - plane.threads.now()
            if left > 0:
                plane.changed.wait(min(left, WARN_AFTER, max(0.0, until - plane.threads.now())))
        if left <= 0:
            if active and not call.changes_state:  # a unit has no status to return
                return None
            raise RebuildTimeout(f"{call}: {phase_text(plane, limits)} for {limits.step_timeout:g} s; {blocking(plane)}")
        waited = patience.due()
        if waited is not None:
            text, extra = phase_text(plane, limits), about(plane, "waiting", call=call.number, waited_seconds=waited)
            logger.warning("%s: %s for %.0f s; %s", call, text, waited, blocking(plane), extra=extra)


def _ended(plane: Plane) -> Exception:
    """Why this lifetime is over."""
    assert plane.error is not None
    if isinstance(plane.error, JoinError):  # the job it had met is gone, or refuses it
        return Excluded(str(plane.error))
    return plane.error.with_traceback(None)  # or the frames of every earlier call would pile up in it
