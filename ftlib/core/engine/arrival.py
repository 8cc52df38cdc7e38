"""A newcomer's first call: how the program's call becomes one of the others' calls.

The others are in whatever comes next in their loops. Where it is a call like the program's own, the newcomer makes it its own.
Any other it takes part in with nothing of its own; meanwhile the state gets here, beside the others' training, if it can.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ...errors import GroupError, StepMismatch
from ..calls.call import Call, Results
from ..calls.follow import Followed
from ..calls.follower import NoFollowing, Recovery
from ..calls.session import Session
from ..plane.failures import Failures
from ..plane.plane import Plane
from ..tensors.layout import Layout
from ..tensors.layout_book import LayoutBook
from ..tensors.staging import Slot
from .inquiry import Entered, Inquiry
from .waiting import Limits

__all__ = ["FOREIGN_CALLS", "Arrival"]

logger = logging.getLogger("ftlib")

FOREIGN_CALLS = 16
"""So many calls a newcomer takes part in among members that have made none like its own: then they run another program."""


class TakesPart(Protocol):
    """Of the engine, what a newcomer needs."""

    said_goodbye: bool

    def follow(self, followed: Followed, enter: Callable[[Session, int], bool]) -> Results:
        """Finish one call of the others."""

    def keep(self, results: Results, instead: Sequence[Slot]) -> None:
        """Leave the slots of ``results`` to who keeps them, and use those ``instead`` from now on."""

    def reloaded(self, own: Call) -> None:
        """The program's call has another state than it was made with."""

    def turn_back(self, own: Call) -> None:
        """Go on with the program's call."""


class Arrival:
    """Of one lifetime. Used by the training thread, while its call is in progress; idle once the program has come in."""

    def __init__(
        self,
        plane: Plane,
        limits: Limits,
        failures: Failures,
        inquiry: Inquiry | None,
        recovery: Recovery | None,
        layouts: LayoutBook,
    ) -> None:
        """``inquiry``: asks what the others are in; None where all are alike. ``recovery``: gets the state beside theirs."""
        self._plane = plane
        self._limits = limits
        self._failures = failures
        self._inquiry = inquiry
        self._recovery = recovery
        self._layouts = layouts
        self._threads = plane.threads
        self.call: Call | None = None
        """The program's, for which anything was begun here."""
        self._refused = False
        """Whether this call does not follow any more."""
        self._since = 0.0
        """When the wait for a call like the own one began."""
        self._foreign = 0
        """Calls that it met since then, one after the other, of members that have made none like its own."""
        self._others: tuple[Session, Entered] | None = None
        """The answer of the others, and where it holds. Good for one decision."""

    # --- what a decision depends on ------------------------------------------------------------------------------------

    @property
    def newcomer(self) -> bool:
        """Whether the program may be at another place than the others' programs."""
        return self._plane.newcomer and self._inquiry is not None

    def follows(self, own: Call, session: Session) -> bool:
        """Whether this member can take part in the others' calls until it has the state."""
        self.begin(own)
        return not self._refused and self._recovery is not None and self._recovery.wanted(own, session)

    def others(self, session: Session) -> Entered | None:
        """What the others are in; None where that has to be asked."""
        asked, self._others = self._others, None
        return asked[1] if asked is not None and asked[0] is session else None

    # --- what can be done ----------------------------------------------------------------------------------------------

    def ask(self, own: Call, session: Session) -> Results | None:
        """Find out what the others are in."""
        assert self._inquiry is not None
        entered = self._inquiry.ask(own, session)
        self._others = session, entered
        if entered is not Entered.UNKNOWN:
            self._foreign = self._foreign + 1 if entered is Entered.FOREIGN else 0
        return None

    def follow(self, engine: TakesPart, own: Call) -> Results | None:
        """Take part in the others' calls until one of them is ``own``: its results. None: ``own`` is in progress as before."""
        plane, recovery, name = self._plane, self._recovery, str(own)
        assert recovery is not None
        self._layouts.note(own.layout)
        try:
            while True:
                plane.turn_to(followed := Followed(self._threads.now(), veto=own.veto))
                results = engine.follow(followed, recovery.enter)
                own.become(followed)
                if engine.said_goodbye:
                    break
                complete = recovery.finished(results)
                if (instead := recovery.kept(results)) is not None:
                    engine.keep(results, instead)
                if complete and results.layout.signature == own.layout.signature:
                    return results
        except NoFollowing as reason:
            extra = plane.about("no_following", why=str(reason))
            logger.warning("%s: %s; the others wait while this worker loads the state", name, reason, extra=extra)
            recovery.end()
            plane.counters.recovery_fallbacks += 1
        finally:
            own.reattach()  # averages were replayed through its tensors
            engine.reloaded(own)
        self._refused = True
        engine.turn_back(own)
        return None

    def accompany(self, engine: TakesPart, own: Call) -> Results | None:
        """Take part in one call of the others, with nothing of the program's; ``own`` is in progress as before.

        StepMismatch where they never make one like ``own``, as far as can be seen.
        """
        plane, timeout = self._plane, self._limits.step_timeout
        late = self._threads.now() > self._since + timeout
        if late or self._foreign > FOREIGN_CALLS:
            how_long = f"within {timeout:g} s" if late else f"so far, {self._foreign} of them since it came"
            error = StepMismatch(
                f"members entered calls with different tensors or operations: {own.layout.text} is this worker's first call, "
                f"and the others have made none like it {how_long}: run the same program everywhere (a worker that joins later "
                "comes in with a call of the loop: let its first one be such a call, and no barrier before the loop, say)"
            )
            self._failures.stop(error)
            raise error
        plane.turn_to(followed := Followed(self._threads.now(), veto=self._limits.veto))
        try:
            engine.follow(followed, lambda session, _number: plane.acting_in(session))
        except NoFollowing as reason:
            logger.debug("%s: %s", followed, reason, extra=plane.about("no_following", why=str(reason)))
        engine.turn_back(own)
        return None

    def stay_out(self, engine: TakesPart, own: Call) -> None:
        """The call that would have been ``own`` is the others' last of their loop, and this program's loop would go on."""
        text = (
            "%s: the others end their loop here, and this worker's loader has looked further ahead: it comes in with the next"
        )
        logger.info(text, own, extra=self._plane.about("stays_out", call=own.number))
        own.reloaded()
        engine.turn_back(own)
        self._since, self._foreign = self._threads.now(), 0

    def learnt(self, followed: Followed, session: Session) -> bool:
        """Whether it is known what the others finished; False where ``session`` has ended meanwhile."""
        try:
            followed.learn(self.layout(session, session.plan.signature))
        except GroupError as error:
            if self._plane.acting_in(session):
                raise NoFollowing(str(error)) from None
            return False
        return True

    def layout(self, session: Session, start: bytes) -> Layout:
        """The layout whose signature starts so. GroupError where nobody tells."""
        assert self._recovery is not None  # only a follower may not know it
        return self._layouts.find(start) or self._recovery.layout(session, start)

    def begin(self, own: Call) -> None:
        """The program comes in with this call, if it can. Idempotent."""
        if self.call is not own:
            self.call, self._refused, self._since, self._foreign = own, False, self._threads.now(), 0
            self._others = None

    def end(self) -> None:
        """The call is left: nothing more is wanted."""
        self.call = None
        if self._recovery is not None:
            self._recovery.end()
