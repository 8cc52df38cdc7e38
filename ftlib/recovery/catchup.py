"""The joiner's side: what it asks of the donors at each call that it follows, until the state is its own.

The training thread asks and waits where the others may have to wait too; the ``Round`` brings the stripes and replays the
averages beside it. Whatever cannot be done ends in ``NoFollowing``: then the state is loaded while the others wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consensus import Member

from ..bucket import Layout
from ..call import Call, Kind, Results
from ..errors import GroupError
from ..follower import NoFollowing
from ..logs import about
from ..plane import Plane
from ..registry import Registered
from ..session import Session
from ..staging import Slot
from ..units import size
from .fetch import FetchError, Later, Source, offered
from .proof import Proof
from .replay import why_not
from .round import Round
from .stripes import cut
from .warmth import Warmth

__all__ = ["Allowed", "Catchup"]

logger = logging.getLogger("ftlib")

_MEBI = 1 << 20
_PAUSE = 0.05
"""Seconds between two questions that others wait for."""
_TRIES = 3
"""Calls on entry to which the rest of the state may fail to arrive."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a joiner may use. Bytes."""

    patience: float
    """Seconds for which the others may have to wait for one thing."""
    pending: int
    """Of averages that wait to be replayed; beyond it the others wait."""
    live: bool = True
    """Whether to follow at all."""


class Catchup:
    """The ``Recovery`` of one lifetime. Used on the training thread."""

    def __init__(
        self,
        plane: Plane,
        registered: Callable[[], Registered | None],
        source: Callable[[], Source],
        allowed: Allowed,
        warmth: Callable[[Registered, Call], Warmth] | None = None,
    ) -> None:
        """``registered``: what the program registered by now. ``source``: a new one for each round.

        ``warmth``: how a spare gets the state while it waits; None where there are no spares.
        """
        self._plane = plane
        self._registered = registered
        self._new_source = source
        self._allowed = allowed
        self._new_warmth = warmth
        self._warmth: Warmth | None = None
        self._own: Call | None = None
        """The call that is preceded by others'."""
        self._round: Round | None = None
        self._proof: Proof | None = None
        """Of the call that is about to be followed."""
        self._proved = False
        self._asked: dict[str, Member] = {}
        """Who may have pinned something for this member."""
        self._failures = 0
        self._refused = False
        """This lifetime does not follow any more."""

    def wait(self, own: Call) -> None:
        """See ``Recovery``."""
        registered = self._registered()
        if self._new_warmth is None or self._warmth is not None or self._refused or not self._allowed.live:
            return
        if registered is not None and own.kind is Kind.AVERAGE and not why_not(registered):
            self._warmth = self._new_warmth(registered, own)
            self._warmth.begin()

    @property
    def trouble(self) -> Exception | None:
        """See ``Recovery``."""
        return None if self._warmth is None else self._warmth.error

    def wanted(self, own: Call, session: Session) -> bool:
        """See ``Recovery``."""
        wanted = self._wanted(own, session)
        if not wanted and self._warmth is not None:
            warmth, self._warmth = self._warmth, None
            if warmth.end():
                own.reloaded()  # its gradients are none any more
        return wanted

    def _wanted(self, own: Call, session: Session) -> bool:
        plane, registered = self._plane, self._registered()
        if self._refused or not self._allowed.live or registered is None or own.kind is not Kind.AVERAGE or plane.founder:
            return False
        if not plane.authority or plane.origin == plane.authority or not session.plan.holders:
            return False
        reason = why_not(registered)
        if reason:
            self._refused = True
            plane.counters.recovery_fallbacks += 1
            logger.info("the others wait while this worker loads the state: %s", reason, extra=about(plane, "no_following"))
            return False
        self._own = own
        plane.tempo.busy = 0  # the way here says nothing of this member's pace
        return True

    def enter(self, session: Session, number: int) -> bool:
        """See ``Recovery``."""
        try:
            return self._enter(session, number)
        except NoFollowing:
            self._refused = True
            raise

    def finished(self, results: Results) -> bool:
        """See ``Recovery``."""
        proof, self._proof = self._proof, None
        alike = results.layout.signature == self._first.layout.signature
        if proof is None or proof.number != results.number or not alike:
            if proof is not None:
                proof.close()
            self._same_kind(results, alike=alike)
            return False
        round_ = self._current()
        try:
            if not self._proved:
                self._proved = proof.holds()
        except FetchError as error:
            self._failed(str(error))
            return False
        if not self._proved:
            self._refused = True
            raise NoFollowing(
                "what was replayed is not what the others have: they do more in a step than what was registered with apply= "
                "(by default, the optimizers' step); clipping, schedulers and averages of weights belong into it"
            )
        return self._caught_up(round_, results.number)

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """See ``Recovery``: keeps the averages that the program would have applied."""
        round_ = self._current()
        if self._plane.origin == round_.origin:
            return None
        applied = results.layout.signature == self._first.layout.signature and not self._first.void(results)
        return round_.keep(results.number, results if applied else None)

    def layout(self, session: Session, start: bytes) -> Layout:
        """See ``Recovery``."""
        source = self._round.source if self._round is not None else self._new_source()
        go_on = self._while_acting(session)
        for holder in session.plan.holders * _TRIES:
            try:
                return source.layout(session.view.member(holder), start, go_on)
            except (FetchError, Later) as error:
                logger.debug("no layout: %s", error, extra=about(self._plane, "no_layout"))
            self._plane.wait_end(session, _PAUSE)
        raise GroupError(f"{session.names(session.plan.holders)} did not say what they are doing")

    def end(self) -> None:
        """See ``Recovery``."""
        warmth, self._warmth = self._warmth, None
        if warmth is not None:
            warmth.end()
        self._stop()
        self._own = None
        asked = list(self._asked.values())
        self._asked.clear()
        if asked:
            threading.Thread(target=_release, args=(self._new_source(), asked), name="ftlib-release", daemon=True).start()

    # --- before a call -------------------------------------------------------------------------------------------------

    def _enter(self, session: Session, number: int) -> bool:
        plane = self._plane
        if self._warmth is not None:
            self._warmth.await_call(number - 1, self._while_acting(session))
            if not plane.acting_in(session):
                return False
            warmth, self._warmth = self._warmth, None
            self._asked.update(warmth.asked)
            self._round = warmth.surrender(number)
        if self._round is not None and not self._goes_on(self._round, session, number):
            self._stop()
            text = "getting the state begins anew, as of call %d"
            logger.info(text, number, extra=about(plane, "recovery_restarts", version=number))
        if self._round is None and not self._begin(session, number):
            return False
        round_ = self._current()
        round_.bulletin.tell()
        round_.brake(session, number)
        if round_.level_with(number):
            self._take_the_rest(round_, session, number)
        return plane.acting_in(session)

    def _goes_on(self, round_: Round, session: Session, number: int) -> bool:
        """Whether what was begun is still worth something in ``session``."""
        if round_.session is session:
            return True
        behind = self._plane.member_id in session.plan.healed  # then averages are missing
        return not behind and round_.origin == self._plane.authority and round_.move(session, number)

    def _begin(self, session: Session, number: int) -> bool:
        """Have the state on entry to this call pinned."""
        plane, plan, registered = self._plane, session.plan, self._registered()
        assert registered is not None
        source = self._new_source()
        turn = session.view.index(plane.member_id) % len(plan.holders)
        members = [session.view.member(holder) for holder in plan.holders]
        self._asked.update((member.id, member) for member in members)
        try:
            offer = source.offer(
                members,
                version=number,
                origin=plane.authority,
                turn=turn,
                inline_from=plan.holders[(turn + self._failures) % len(plan.holders)],
                go_on=self._while_acting(session),
            )
            stripes = offered(offer, cut(offer.nbytes, plan.holders, turn, number))
        except (FetchError, Later) as error:
            plane.wait_end(session, 1.0)  # where a donor has just died, the next view will be without it
            if plane.acting_in(session):
                self._failed(str(error))
            return False
        text = "getting %s of state from %s beside the training, as of call %d"
        extra = about(plane, "recovery_begins", state_bytes=offer.nbytes, version=number)
        logger.info(text, size(offer.nbytes), session.names(plan.holders), number, extra=extra)
        self._round = Round(
            plane,
            registered,
            self._first,
            source,
            session,
            session.view.members,
            plane.authority,
            number,
            stripes,
            offer,
            self._allowed.pending,
            self._allowed.patience,
        )
        self._round.begin()
        return True

    def _take_the_rest(self, round_: Round, session: Session, number: int) -> None:
        """All stripes are here, and all averages replayed: what is left is small, or compared while the call is under way."""
        if self._proof is not None:
            self._proof.close()
        go_on = self._while_acting(session)
        proof = Proof(round_, session, number, go_on, compare=not self._proved)
        try:
            proof.arm()
        except (FetchError, Later) as error:
            proof.close()
            if self._plane.acting_in(session):
                self._failed(str(error))
            return
        self._proof = proof

    def _failed(self, why: str) -> None:
        self._failures += 1
        logger.info("the rest of the state did not arrive: %s", why, extra=about(self._plane, "recovery_delayed"))
        if self._failures == _TRIES:
            self._refused = True
            raise NoFollowing(f"the rest of the state did not arrive {_TRIES} times: {why}")

    def _caught_up(self, round_: Round, number: int) -> bool:
        if not self._plane.caught_up(round_.origin, number):
            return False
        self._plane.counters.recoveries += 1
        self._plane.counters.averages_replayed += round_.progress().replayed
        round_.bulletin.caught_up(number)
        return True

    def _same_kind(self, results: Results, *, alike: bool) -> None:
        """Whoever averages other tensors than the others will never do the same as they."""
        if not alike and results.layout.kind == self._first.layout.kind:
            self._refused = True
            raise NoFollowing(f"the others average something else ({results.layout.text})")

    def _stop(self) -> None:
        round_, self._round = self._round, None
        proof, self._proof = self._proof, None
        self._proved, self._failures = False, 0
        if proof is not None:
            proof.close()
        if round_ is not None:
            round_.end()

    def _while_acting(self, session: Session) -> Callable[[], bool]:
        """True as long as ``session`` is the active one, for the time that the others may have to wait."""
        plane, deadline = self._plane, self._plane.threads.now() + self._allowed.patience
        return lambda: plane.acting_in(session) and plane.threads.now() < deadline and not plane.leaving()

    @property
    def _first(self) -> Call:
        assert self._own is not None, "a call of the program's is under way while others are followed"
        return self._own

    def _current(self) -> Round:
        assert self._round is not None, "a round is under way while calls are followed"
        return self._round


def _release(source: Source, donors: Sequence[Member]) -> None:
    for donor in donors:
        source.release(donor)
