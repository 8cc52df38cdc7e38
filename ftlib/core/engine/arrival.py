"""A newcomer's first call: how the program's call becomes one of the others' calls.

The others' next call is whatever comes next in their loops. If it is like the program's own call, the newcomer adopts it as its
own. In any other call it takes part with nothing of its own. Meanwhile it gets the state, if possible while the others train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

from consensus import CarefulLogger

from ...errors import GroupError, StepMismatch
from ..calls.attempt import UNKNOWN
from ..calls.call import Call, Results
from ..calls.follow import Followed
from ..calls.learner import NoFollowing, Recovery
from ..calls.session import Session
from ..plane.failures import Failures
from ..plane.plane import Plane
from ..tensors.compression.names import Unknown
from ..tensors.layout import Layout
from ..tensors.layout_book import LayoutBook
from ..tensors.staging import Slot
from .catching_up import CatchUp
from .inquiry import Entered, Inquiry
from .waiting import Limits, Waiting

logger = CarefulLogger("ftlib")

FOREIGN_CALLS = 16
"""Calls that a newcomer follows among members that have made none like its own; after more, they run another program."""


class TakesPart(Protocol):
    """The part of the engine that a newcomer needs."""

    said_goodbye: bool

    def follow(self, followed: Followed, enter: Callable[[Session, int], bool]) -> Results:
        """Finish one call of the others."""

    def decided(self) -> None:
        """It is known by now whether the call just followed has given this member the state."""

    def keep(self, results: Results, instead: Sequence[Slot]) -> None:
        """Leave the slots of ``results`` to the observer that keeps them, and use the slots ``instead`` from now on."""

    def reloaded(self, own: Call) -> None:
        """The registered state has changed since the program made its call."""

    def turn_back(self, own: Call) -> None:
        """Go on with the program's call."""


class Arrival:
    """The arrival in one lifetime. Used by the training thread while its call is in progress; idle once the program came in."""

    def __init__(
        self,
        plane: Plane,
        limits: Limits,
        failures: Failures,
        inquiry: Inquiry | None,
        recovery: Recovery | None,
        layouts: LayoutBook,
        waiting: Waiting,
    ) -> None:
        """``inquiry``: asks for the others' call; None if all calls are alike. ``recovery``: gets the state beside them."""
        self._plane = plane
        self._limits = limits
        self._failures = failures
        self._inquiry = inquiry
        self._recovery = recovery
        self._layouts = layouts
        self._waiting = waiting
        self._threads = plane.threads
        self.call: Call | None = None
        """The program's call for which the arrival was begun, if any."""
        self._refused = False
        """True if this member does not follow any more during this call."""
        self._since = 0.0
        """When the wait for a call like the program's own began."""
        self._foreign = 0
        """Calls in a row since then of members that have made none like the program's own."""
        self._theirs = ""
        """The call of theirs in which this member took part last, for people."""
        self._others: tuple[Session, Entered] | None = None
        """The others' answer, and the session in which it is valid. Good for one decision."""

    # --- what a decision depends on ------------------------------------------------------------------------------------

    @property
    def newcomer(self) -> bool:
        """True if the program may be at another place than the others' programs."""
        return self._plane.newcomer and self._inquiry is not None

    def follows(self, own: Call, session: Session) -> bool:
        """True if this member can take part in the others' calls until it has the state."""
        self.begin(own)
        return not self._refused and self._recovery is not None and self._recovery.wanted(own, session)

    def others(self, session: Session) -> Entered | None:
        """Which call the others are in; None if they have to be asked."""
        asked, self._others = self._others, None
        return asked[1] if asked is not None and asked[0] is session else None

    # --- what can be done ----------------------------------------------------------------------------------------------

    def ask(self, own: Call, session: Session) -> Results | None:
        """Ask which call the others are in. RebuildTimeout if they enter none within ``step_timeout``."""
        assert self._inquiry is not None
        entered = self._inquiry.ask(own, session, self._waiting.entered)
        self._others = session, entered
        if entered is not Entered.UNKNOWN:
            self._foreign = self._foreign + 1 if entered is Entered.FOREIGN else 0
        return None

    def follow(self, engine: TakesPart, own: Call) -> Results | None:
        """Take part in the others' calls until one is ``own``; returns its results. None: ``own`` is in progress as before."""
        plane, recovery, name = self._plane, self._recovery, str(own)
        assert recovery is not None
        self._layouts.note(own.layout)
        try:
            while True:
                plane.turn_to(followed := Followed(self._threads.now(), veto=own.veto, may_give_state=True))
                try:
                    results = engine.follow(followed, recovery.enter)
                    own.become(followed)
                    if engine.said_goodbye:
                        break
                    complete = recovery.finished(results)
                finally:
                    engine.decided()
                if (instead := recovery.kept(results)) is not None:
                    engine.keep(results, instead)
                if complete and own.layout.same_call(results.layout.signature):
                    recovery.end()  # before the result is delivered: it puts the program's gradients in their place
                    return results
        except NoFollowing as reason:
            extra = plane.about("no_following", why=str(reason))
            logger.warning("%s: %s; the others wait while this worker loads the state", name, reason, extra=extra)
            recovery.end()
            plane.counters.recovery_fallbacks += 1
        finally:
            own.reattach()  # averages were replayed through the tensors of ``own``
            engine.reloaded(own)
        self._refused = True
        engine.turn_back(own)
        return None

    def accompany(self, engine: TakesPart, own: Call) -> Results | None:
        """Take part in one call of the others, with nothing of the program's; ``own`` is in progress as before.

        StepMismatch if the others seem never to make a call like ``own``.
        """
        plane, timeout = self._plane, self._limits.step_timeout
        late = self._threads.now() > plane.since(self._since) + timeout
        if (late or self._foreign > FOREIGN_CALLS) and not isinstance(own, CatchUp):  # which is like no call
            how_long = f"within {timeout:g} s" if late else f"so far, {self._foreign} of them since it came"
            error = StepMismatch(
                f"members entered calls with different tensors or operations: {own.layout.text} is this worker's first call, "
                f"and the others have made none like it {how_long}{self._theirs}: run the same program everywhere (and let the "
                "first call of a worker that joins later be one of the loop, no barrier before it)"
            )
            self._failures.stop(error)
            raise error
        plane.turn_to(followed := Followed(self._threads.now(), veto=self._limits.veto))
        try:
            engine.follow(followed, lambda session, _number: plane.acting_in(session))
        except NoFollowing as reason:
            logger.debug("%s: %s", followed, reason, extra=plane.about("no_following", why=str(reason)))
        self._theirs = f" (their last: {followed.layout.text})"
        engine.turn_back(own)
        return None

    def stay_out(self, engine: TakesPart, own: Call) -> None:
        """Do not come in with the call that would be ``own``: the others' loop ends with it, and this program's would go on."""
        text = (
            "%s: the others end their loop here, and this worker's loader has looked further ahead: it comes in with the next"
        )
        logger.info(text, own, extra=self._plane.about("stays_out", call=own.number))
        own.reloaded()
        engine.turn_back(own)
        self._since, self._foreign = self._threads.now(), 0

    def learnt(self, followed: Followed, session: Session) -> bool:
        """True if the layout of the call that the others finished is known; False if ``session`` has ended meanwhile."""
        if not session.plan.signature:  # it was declined, and has no result
            followed.learn(UNKNOWN)
            return True
        try:
            followed.learn(self.layout(session, session.plan.signature))
        except GroupError as error:
            if self._plane.acting_in(session):
                raise NoFollowing(str(error)) from None
            return False
        return True

    def layout(self, session: Session, start: bytes) -> Layout:
        """The layout whose signature starts with ``start``. GroupError if no member answers; NoFollowing if this member does
        not know how the call is compressed.
        """
        assert self._recovery is not None  # only a member that follows may lack a layout
        found = self._layouts.find(start) or self._recovery.layout(session, start)
        if not isinstance(found.compression, Unknown):
            return found
        compression = self._layouts.compression(found.compression.name)
        if compression is None:
            raise NoFollowing(f"the others compress by {found.compression.name}, which this worker has not used yet")
        return dataclasses.replace(found, compression=compression)

    def look_ahead(self, own: Call) -> None:
        """The program waits in ``own`` for its first view."""
        if self._recovery is not None:
            self._recovery.look_ahead(own, self._layouts.note)

    def begin(self, own: Call) -> None:
        """Begin the arrival with ``own``: the program comes in with this call, if it can. Idempotent."""
        if self.call is not own:
            self.call, self._refused, self._since, self._foreign = own, False, self._threads.now(), 0
            self._others = None

    def end(self) -> None:
        """The program leaves its call: end the arrival."""
        self.call = None
        if self._recovery is not None:
            self._recovery.end()
