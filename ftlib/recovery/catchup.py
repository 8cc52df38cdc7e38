"""The joiner's side: what it asks of the donors while it follows their calls, until the state is its own.

It asks about a call that is still to come, so that nobody waits for its questions; the ``Round`` brings the stripes and replays
the averages beside the training thread. Whatever cannot be done ends in ``NoFollowing``: then the state is loaded while the
others wait.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import threading
from collections.abc import Callable, Sequence

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
from .allowed import Allowed
from .fetch import FetchError, Later, Offer, Over, Source, offered
from .live import separable
from .proof import Proof
from .question import Question
from .replay import why_not
from .round import Round
from .stock import Stock
from .stripes import Wave, cut
from .warmth import Warmth

__all__ = ["Catchup"]

logger = logging.getLogger("ftlib")

_PAUSE = 0.05
"""Seconds between two questions that others wait for."""
_TRIES = 3
"""Times that what is asked of the donors may fail."""
_AHEAD, _FURTHEST = 2, 256
"""Calls ahead that the state is asked about at first, and at most, where calls are over before a question has arrived."""
_LONG = 0.25
"""Seconds from one call to the next from which on one call ahead is enough."""


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
        self._stock = Stock(allowed.pending, plane.threads)
        self._question: Question[Offer] | None = None
        """What the donors pin on entry to a call that is still to come, or that is under way."""
        self._proof: Proof | None = None
        """Of such a call."""
        self._wave: Wave | None = None
        """What that question is about; None for all of the state."""
        self._ahead = _AHEAD
        self._entered = math.inf
        """When a call was entered last."""
        self._took = 0.0
        """Seconds from that to the one before."""
        self._missed = 0
        """Proofs of calls that turned out to be of another kind than the program's."""
        self._asked: dict[str, Member] = {}
        """Who may have pinned something for this member."""
        self._failures = 0
        self._lingers = False
        """The state was here as of the last call of a loop, and went on."""
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
        proof = self._proof
        alike = results.layout.signature == self._first.layout.signature
        if proof is None or proof.number > results.number:
            self._same_kind(results, alike=alike)
            return False
        self._proof = None
        try:
            if not (alike and proof.begun and proof.number == results.number):
                self._missed += 1
                self._same_kind(results, alike=alike)
                return False
            return self._proved(proof) and self._caught_up(results.number)
        finally:
            proof.close()

    def kept(self, results: Results) -> Sequence[Slot] | None:
        """See ``Recovery``: keeps the averages that the program would have applied."""
        question = self._question
        if question is not None and question.version == results.number:
            self._question = None
            self._begin(question)
        round_ = self._round
        if round_ is None or self._plane.origin == round_.origin:
            return None
        applied = results.layout.signature == self._first.layout.signature and not self._first.void(results)
        spare = round_.keep(results.number, results if applied else None)
        return None if spare is None else [*spare, *self._stock.kept(self._first.layout, round_.progress().pending)]

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
        asked, self._asked = list(self._asked.values()), {}
        if asked:
            threading.Thread(target=_release, args=(self._new_source(), asked), name="ftlib-release", daemon=True).start()

    # --- before a call -------------------------------------------------------------------------------------------------

    def _enter(self, session: Session, number: int) -> bool:
        plane = self._plane
        now = plane.threads.now()
        self._took, self._entered = now - self._entered, now
        if self._warmth is not None:
            self._warmth.await_call(number - 1, self._while_acting(session))
            if not plane.acting_in(session):
                return False
            warmth, self._warmth = self._warmth, None
            self._asked.update(warmth.asked)
            self._round = warmth.surrender(number)
        if self._round is not None and not self._goes_on(self._round, session, number):
            self._stop()
            extra = about(plane, "recovery_restarts", version=number)
            logger.info("getting the state begins anew, as of call %d", number, extra=extra)
        if self._question is not None and (self._question.session is not session or self._question.version < number):
            self._drop_question()  # it is asked anew
        round_ = self._round
        if self._question is None:
            self._ask(session, round_, number + self._distance)
        if round_ is None:
            return plane.acting_in(session)
        round_.bulletin.tell()
        round_.brake(session, number, level=self._proof is not None and self._proof.number == number)
        if round_.level_with(number, but=1):
            self._near_the_end(round_, session, number)
        return plane.acting_in(session)

    def _goes_on(self, round_: Round, session: Session, number: int) -> bool:
        """Whether what was begun is still worth something in ``session``."""
        if round_.session is session:
            return True
        behind = self._plane.member_id in session.plan.healed  # then averages are missing
        return not behind and round_.origin == self._plane.authority and round_.move(session, number)

    def _ask(self, session: Session, round_: Round | None, version: int) -> None:
        """Have the next portion of the state on entry to that call pinned, if it is time for that."""
        plane, plan, source, registered = self._plane, session.plan, self._new_source(), self._registered()
        assert registered is not None
        if round_ is not None:
            self._wave = round_.wave
            if self._wave is None:
                return
        else:
            self._wave = Wave(keep=version) if separable(registered) else None
        members = [session.view.member(holder) for holder in plan.holders]
        self._asked.update((member.id, member) for member in members)
        turn = self._turn(session)
        ask = functools.partial(
            source.offer,
            members,
            version=version,
            origin=plane.authority,
            turn=turn,
            inline_from=plan.holders[(turn + self._failures) % len(plan.holders)],
            wave=self._wave,
        )
        self._question = Question(session, version, lambda go_on: ask(go_on=go_on), self._while_acting(session, version))

    def _begin(self, question: Question[Offer]) -> None:
        """The call that it is about has ended: the donors have pinned the state as it was on entry, or have not."""
        plane, session, version, registered = self._plane, question.session, question.version, self._registered()
        plan, wave = session.plan, self._wave or Wave()
        assert registered is not None
        try:
            offer = question.result()
            start, stop = offer.portions[wave.number]
            turn, first = self._turn(session) + wave.number, wave.first
            stripes = offered(offer, cut(stop - start, plan.holders, turn, version, start=start, first_index=first))
        except (FetchError, Later) as error:
            self._unanswered(session, error)
            return
        if self._round is not None:
            self._round.add(offer, stripes, version)
            return
        text = "getting %s of state from %s beside the training, as of call %d"
        extra = about(plane, "recovery_begins", state_bytes=offer.nbytes, version=version)
        logger.info(text, size(offer.nbytes), session.names(plan.holders), version, extra=extra)
        limits = self._allowed.pending, self._allowed.patience
        moment = session, session.view.members, plane.authority, version
        self._round = Round(plane, registered, self._first, self._new_source(), *moment, stripes, offer, *limits)
        self._round.begin()

    @property
    def _distance(self) -> int:
        """Calls ahead that it is asked about."""
        return 1 if self._took > _LONG and self._ahead == _AHEAD else self._ahead

    def _turn(self, session: Session) -> int:
        return session.view.index(self._plane.member_id) % len(session.plan.holders)

    def _near_the_end(self, round_: Round, session: Session, number: int) -> None:
        """All stripes are here, and all averages replayed but for the last: what is left is small, or is compared."""
        proof = self._proof
        if proof is not None and (proof.session is not session or proof.number < number):
            proof.close()
            proof = self._proof = None
        if proof is None:
            # A program may repeat calls of several kinds, of which one is its average: whatever the rhythm, that is met.
            further = random.randrange(self._missed + 1)
            about_call = number + self._distance + further
            go_on = self._while_acting(session, about_call)
            self._proof = Proof(round_, session, about_call, go_on, self._failures)
        elif proof.number == number and round_.level_with(number):
            proof.begin()

    def _proved(self, proof: Proof) -> bool:
        """Whether the state is here now as it was on entry to the call that has just been followed. Raises NoFollowing."""
        try:
            equal = proof.holds()
        except (FetchError, Later) as error:
            self._unanswered(proof.session, error)
            return False
        if not equal:
            self._refused = True
            raise NoFollowing(
                "what was replayed is not what the others have: they do more in a step than what was registered with apply= "
                "(by default, the optimizers' step); clipping, schedulers and averages of weights belong into it"
            )
        proof.load()
        # Its loader would hand out more batches after the others' last one. It comes in with the next epoch, if there is one;
        # where each of them is that short, all the same.
        self._lingers = not self._lingers and self._plane.data.left_behind(self._first.batches)
        return not self._lingers

    def _unanswered(self, session: Session, error: Exception) -> None:
        """What was asked did not come: it is asked anew, unless that has happened too often."""
        if isinstance(error, Over) and self._ahead < _FURTHEST:
            self._ahead *= 2
            return
        self._plane.wait_end(session, 1.0)  # where a donor has just died, the next view will be without it
        if self._plane.acting_in(session):
            self._failed(str(error))

    def _failed(self, why: str) -> None:
        self._failures += 1
        logger.info("the rest of the state did not arrive: %s", why, extra=about(self._plane, "recovery_delayed"))
        if self._failures == _TRIES:
            self._refused = True
            raise NoFollowing(f"the rest of the state did not arrive {_TRIES} times: {why}")

    def _caught_up(self, number: int) -> bool:
        round_ = self._round
        assert round_ is not None, "a round is under way while calls are followed"
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
        self._failures = 0
        if proof is not None:
            proof.close()
        self._stock.close()
        self._drop_question()
        if round_ is not None:
            round_.end()

    def _drop_question(self) -> None:
        question, self._question = self._question, None
        if question is not None:
            question.close()

    def _while_acting(self, session: Session, version: int = 0) -> Callable[[], bool]:
        """True as long as ``session`` is the active one, for the time that the others may have to wait.

        That begins when call ``version`` has ended: until then nobody waits for what is asked about it.
        """
        plane, patience = self._plane, self._allowed.patience
        now = plane.threads.now
        deadline = now() + patience

        def go_on() -> bool:
            nonlocal deadline
            if plane.finished < version:
                deadline = now() + patience
            return plane.acting_in(session) and now() < deadline and not plane.leaving()

        return go_on

    @property
    def _first(self) -> Call:
        assert self._own is not None, "a call of the program's is under way while others are followed"
        return self._own


def _release(source: Source, donors: Sequence[Member]) -> None:
    for donor in donors:
        source.release(donor)
