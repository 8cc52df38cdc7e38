"""The waits of a call, for a session to act in and for its operations; deadlines, and warnings that name missing members."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from consensus import CarefulLogger, LeftError

from ...errors import Excluded, GroupError, JoinError, RebuildTimeout
from ..calls.attempt import SETTLE
from ..calls.call import Call
from ..calls.session import Session
from ..plane.phase import Phase
from ..plane.plane import Plane

logger = CarefulLogger("ftlib")

WARN_AFTER = 10.0
"""Seconds of waiting after which a warning names the missing members; again each time the wait doubles."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Deadlines in seconds, and ``min_size`` members below which calls wait."""

    step_timeout: float = 600.0
    min_size: int = 1
    drain_patience: float = 5.0
    """Seconds that a worker that has to leave waits for what ends soon: a view change, or a sync."""
    veto: bool = True
    """True if nobody applies averages with inf or nan."""
    held: int = 0
    """Bytes of averages that this member may hold while it follows the others; 0 if it never follows."""


@dataclass(slots=True)
class Patience:
    """The patience of one call. ``deadline``, ``began``: on the clock ``now``, in seconds."""

    deadline: float
    began: float
    now: Callable[[], float]
    warn_at: float = WARN_AFTER

    def due(self) -> float | None:
        """Seconds waited if a warning is due now."""
        waited = self.now() - self.began
        if waited < self.warn_at:
            return None
        self.warn_at *= 2
        return waited


@runtime_checkable
class Unhurried(Protocol):
    """A call with its own patience."""

    def patience(self, timeout: float, now: Callable[[], float]) -> Patience:
        """How long a member in this call waits for the others."""


class Waiting:
    """The waits of one lifetime's calls. Used by the thread that carries out the calls; a call that need not wait skips it."""

    def __init__(self, plane: Plane, limits: Limits, confirmed: Callable[[], bool]) -> None:
        """``confirmed``: returns True if the view is undisputed."""
        self._plane = plane
        self._limits = limits
        self._confirmed = confirmed
        self.now = plane.threads.now
        self._for_session: tuple[object, Patience] | None = None
        """The newest wait for a session: the key of its call, and its patience."""
        self._for_operations: tuple[object, Patience] | None = None
        """The same for the newest wait for operations."""

    def session(self, call: Call) -> Session | None:
        """The session to act in; None if too few members are there at the deadline. A call of which another member has the
        result needs no more of them.

        Raises the error that ended this lifetime, RebuildTimeout at the deadline (in a view change: see ``Plane.since``), and
        LeftError if there is no session to act in and this worker has to leave.
        """
        plane, limits, now = self._plane, self._limits, self.now
        since = now()
        if self._for_session is None or self._for_session[0] != (call.number, call.began):  # else warnings get rarer
            self._for_session = (call.number, call.began), self._patience(call, call.began + limits.step_timeout)
        patience = self._for_session[1]
        while True:
            with plane.changed:
                session = plane.session
                if plane.phase is Phase.STOPPED:
                    raise ended(plane)
                active = plane.phase is Phase.ACTIVE and session is not None
                enough = session is not None and (session.size >= limits.min_size or self._given(call, session))
                if active and session is not None and enough:
                    plane.counters.time_use.waited(now() - since)
                    return session
                until = self._last_moment(since) if plane.leaving() else math.inf
                left = (patience.deadline if active else max(patience.deadline, self._deadline(call))) - now()
                if left > 0:
                    plane.tell()
                    plane.changed.wait(min(left, WARN_AFTER, max(0.0, until - now())))
                    if active:  # it was so until now, as every change wakes
                        plane.lacks()
            if left <= 0:
                if active and not call.changes_state:  # a unit has no status to return
                    return None
                raise RebuildTimeout(f"{call}: {self.phase_text()} for {limits.step_timeout:g} s; {self.blocking()}")
            waited = patience.due()
            if waited is not None:
                extra = plane.about("waiting", call=call.number, waited_seconds=waited)
                logger.warning("%s: %s for %.0f s; %s", call, self.phase_text(), waited, self.blocking(), extra=extra)

    def _given(self, call: Call, session: Session) -> bool:
        return session.gives(call.number) and not self._plane.newcomer

    def _last_moment(self, since: float) -> float:
        """Until when this worker waits although it has to leave: a view change ends soon, any other wait may never end."""
        until = since + self._limits.drain_patience if self._plane.phase is Phase.FROZEN else -math.inf
        if self.now() >= until:
            raise LeftError("asked to leave while it waited for a view to act in")
        return until

    def waited(self, call: Call, session: Session, seconds: float, blocking: Callable[[], str] | None = None) -> None:
        """One operation of ``call`` has taken ``seconds`` so far. ``blocking``: who is waited for, if not the whole view.

        Raises GroupError if its group was given up, RebuildTimeout at the deadline, LeftError if this worker has to leave while
        the view is disputed and no other view comes.
        """
        plane, limits = self._plane, self._limits
        with plane.changed:
            plane.tell()  # this member now waits for those that have not come yet
            over = plane.session is not session or plane.phase is not Phase.ACTIVE
        if over and seconds > SETTLE:
            raise GroupError("the group was given up, but this operation does not end")
        if seconds > limits.drain_patience and plane.leaving() and not self._confirmed():
            raise LeftError("asked to leave, and there is no quorum for a view in which this call could end")
        key = call.number, call.began, session.view.view_id
        if self._for_operations is None or self._for_operations[0] != key:
            self._for_operations = key, self._patience(call, self._deadline(call))
        self._go_on(call, self._for_operations[1], blocking or self.blocking)

    def entered(self, call: Call, session: Session) -> None:
        """Nobody has entered the others' next call yet, which a newcomer in ``call`` waits for. RebuildTimeout at the deadline,
        which counts from the first time that this is so.
        """
        key = call.number, -math.inf, session.view.view_id
        if self._for_operations is None or self._for_operations[0] != key:
            now = self.now()
            self._for_operations = key, Patience(now + self._limits.step_timeout, now, self.now)
        self._go_on(call, self._for_operations[1], self.blocking)

    def _go_on(self, call: Call, patience: Patience, blocking: Callable[[], str]) -> None:
        """Warn now and then; RebuildTimeout at the deadline."""
        plane, limits = self._plane, self._limits
        if (now := self.now()) > patience.deadline:
            with plane.changed:
                stepped = plane.peers.stepped  # a round of such steps may take hours
            if now > stepped + limits.step_timeout:
                raise RebuildTimeout(f"{call}: not finished within {limits.step_timeout:g} s; {blocking()}")
        long = patience.due()
        if long is not None:
            extra = plane.about("waiting", call=call.number, waited_seconds=long)
            logger.warning("%s: waiting for %.0f s; %s", call, long, blocking(), extra=extra)

    def phase_text(self) -> str:
        """In words, what a call waits for."""
        plane, limits = self._plane, self._limits
        session = plane.session
        if plane.phase is Phase.ACTIVE and session is not None:
            return f"only {session.size} of at least {limits.min_size} members are there"
        if plane.phase is Phase.WAITING:
            return "not admitted to a view yet"
        return "no new view"

    def blocking(self) -> str:
        """In words, the members that this one waits for, as far as the others' pings show."""
        return self._plane.blocking()

    def _deadline(self, call: Call) -> float:
        """That of all waits of ``call`` but the one for members: it has begun anew where there were too few of them."""
        return self._plane.since(call.began) + self._limits.step_timeout

    def _patience(self, call: Call, deadline: float) -> Patience:
        """The call's own patience if it has one, else until ``deadline``."""
        if isinstance(call, Unhurried):
            return call.patience(self._limits.step_timeout, self.now)
        return Patience(deadline, self.now(), self.now)


def ended(plane: Plane) -> Exception:
    """The error that ended this lifetime."""
    assert plane.error is not None
    if isinstance(plane.error, JoinError):  # the job that this worker had met is gone, or refuses it
        return Excluded(str(plane.error))
    return plane.error.with_traceback(None)  # or the frames of every earlier call would pile up in it
