"""Open calls: averages that are entered and begun while the program still computes its gradients.

``next_move`` is the one decision, ``OpenCalls`` carries it out, on the training thread. Where a call may not be entered early,
or its communication fails, nothing is done until the end of backward; then the engine carries it out like any other call.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from enum import Enum

from ...errors import GroupError
from ..calls.attempt import SETTLE, Waits
from ..calls.open_attempt import OpenAttempt
from ..calls.open_call import OpenCall
from ..calls.open_device_attempt import OpenDeviceAttempt
from ..calls.session import Session
from ..plane.failures import Failures
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..tensors.staging import Staging
from ..tensors.trailer import RankRecord
from .call_lock import CallLock

_GRACE = 1.0
"""Seconds for which a call that is given up stays, so that slower members can finish the call before."""


class Move(Enum):
    """What an open call does next, while the program computes."""

    ENTER = "enter the call, and begin its first operation"
    BEGIN = "begin the next bucket's operation"
    HOLD = "wait for more gradients, for the first operation to end, or for the end of backward"
    DEFER = "leave everything else to the end of backward"


@dataclass(frozen=True, slots=True)
class OpenFacts:
    """The inputs of a decision."""

    entered: bool
    early: bool
    """True if the call may be entered now (see ``why_not_early``); counts before it is entered only."""
    failed: bool
    """True if communication has failed, the session is over, or an input has changed."""
    complete: int
    """The number of buckets whose gradients are complete."""
    begun: int
    """The number of buckets whose operations were begun."""
    count: int
    """The number of buckets."""
    room: bool
    """True if another bucket may be staged now."""


def next_move(facts: OpenFacts) -> Move:
    """What an open call does next. The last operation begins at the end of backward only: until then no member can finish the
    call, so a gradient may still turn out to be incomplete (``restart``), or backward may raise.
    """
    if facts.failed or not (facts.entered or facts.early):
        return Move.DEFER
    if not facts.entered:
        return Move.ENTER
    return Move.BEGIN if facts.begun < min(facts.complete, facts.count - 1) and facts.room else Move.HOLD


def why_not_early(plane: Plane, call: OpenCall, min_size: int) -> str:
    """Why ``call`` may not be entered in the middle of backward; empty if it may. Under the plane's lock.

    Such a call may have to wait, to load the state, to take part in other calls, or to freeze at its end: that belongs to the
    end of backward.
    """
    session = plane.session
    if plane.phase is not Phase.ACTIVE or session is None:
        return "no view is active"
    # Where they expect none, all begin with the same prelude, whatever they enter: so the call before is a good guess.
    expected = session.plan.signature if session.expected is None else session.expected.signature
    reasons = (
        (session.group is None or session.size < min_size, "there are too few members"),
        (len(call.layout.buckets) < 2, "its only bucket begins at the end of backward"),
        (plane.newcomer or not plane.level, "this member does not have the state yet"),
        (plane.lag.calls > 0, "this member is late"),
        (plane.boundary_requested or plane.leaving(), "a member joins or leaves after this call"),
        ((session.donor or session.keeps) and plane.finished < session.plan.call, "the others have finished this call"),
        (expected != call.layout.signature, "the members expect another call"),
        (call.on_devices and session.expected is None, "it may have to wait for accelerators that start"),
    )
    return next((text for holds, text in reasons if holds), "")


class OpenCalls:
    """The open call of one lifetime, if there is one. Owned by the training thread."""

    def __init__(self, plane: Plane, failures: Failures, waits: Waits, call_lock: CallLock, min_size: int) -> None:
        self._plane = plane
        self._failures = failures
        self._waits = waits
        self._call_lock = call_lock
        self._min_size = min_size
        self._attempt: OpenAttempt | None = None
        """Of the call that was entered early."""

    def may_enter(self, call: OpenCall) -> Session | None:
        """The session in which ``call`` may be entered now; None if it may not."""
        plane = self._plane
        if self._call_lock.departed:
            return None
        with plane.changed:
            return None if why_not_early(plane, call, self._min_size) else plane.session

    def enter(self, call: OpenCall, session: Session, staging: Staging, record: RankRecord) -> None:
        """The plane has entered ``call``: begin its operations in ``session``."""
        plane = self._plane
        kind = OpenDeviceAttempt if call.on_devices else OpenAttempt
        self._attempt = kind(call, session, staging, self._waits, record, plane)
        if not plane.begin(session):
            self._attempt.fail(GroupError("the session was over before the call began"))

    def advance(self, complete: int) -> None:
        """Begin what may begin, now that the gradients of so many buckets are complete. Waits for nobody."""
        attempt = self._attempt
        if attempt is None or attempt.failure is not None:
            return
        try:
            attempt.poll()
            while self._move(attempt, complete) is Move.BEGIN:
                attempt.begin()
        except GroupError as error:
            self._fail(attempt, error)

    def stage(self, number: int, index: int) -> None:
        """The gradient of parameter ``index`` is complete, the rest of bucket ``number`` is not. Waits for nobody."""
        attempt = self._attempt
        if attempt is None or attempt.failure is not None:
            return
        try:
            attempt.stage(number, index)
        except GroupError as error:
            self._fail(attempt, error)

    def restart(self) -> None:
        """An input has changed after it was staged: what was sent is void."""
        if self._attempt is not None:
            self._attempt.drop()

    def take(self, call: OpenCall) -> OpenAttempt | None:
        """The program's backward has ended: the attempt that is under way for ``call``, to be ended by the caller."""
        attempt = self._attempt
        if attempt is None or attempt.call is not call:
            return None
        self._attempt = None
        return attempt

    def abandon(self) -> None:
        """The call gets no gradients: let the others know, so that none waits for this member. Idempotent."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._plane.current is attempt.call:
            results = self._plane.results
            if results is not None and results.changed:  # who is still in that call could get it from nobody
                with contextlib.suppress(GroupError):
                    attempt.meet(_GRACE)
            self._failures.abandon()
        attempt.settle(SETTLE)

    def _move(self, attempt: OpenAttempt, complete: int) -> Move:
        failed = attempt.void or attempt.failure is not None
        begun, count = attempt.begun, attempt.count
        return next_move(
            OpenFacts(entered=True, early=False, failed=failed, complete=complete, begun=begun, count=count, room=attempt.room)
        )

    def _fail(self, attempt: OpenAttempt, error: GroupError) -> None:
        """Report at once, though the program goes on computing: the others may wait for a view without a dead member."""
        attempt.fail(error)
        self._failures.report(attempt.call, attempt.session, error)
