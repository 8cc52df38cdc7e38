"""The joiner's side: what it asks of the donors while it follows their calls, until the state is its own.

It asks about a call before the donors enter it, so that nobody waits for that; the ``Round`` brings the stripes and replays the
averages beside the training thread. What cannot be done ends in ``NoFollowing``: the state is loaded while the others wait.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import threading
from collections.abc import Callable, Sequence

from consensus import Member

from ..bucket import Layout
from ..call import Call, Kind, Results
from ..errors import ConfigError, GroupError
from ..follower import NoFollowing
from ..logs import about
from ..plane import Plane
from ..registry import Registered
from ..session import Session
from ..staging import Slot
from .allowed import Allowed
from .fetch import FetchError, Later, Offer, Over, Source
from .live import separable
from .opening import open_round, stripes_of
from .proof import Proof
from .question import Question
from .replay import why_not
from .round import Round
from .stock import Stock
from .stripes import LARGE, Wave
from .warmth import Warmth

__all__ = ["Catchup"]

logger = logging.getLogger("ftlib")

_PAUSE = 0.05
"""Seconds between two questions that others wait for."""
_GRACE = 0.02
"""Seconds that the others may wait for the last bytes of a small state, rather than this member a call more."""
_TRIES = 3
"""Times that what is asked of the donors may fail."""
_FURTHEST = 256
"""Calls ahead that the state is asked about at most, where calls are over before a question has arrived."""


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
        self._question: Question[Offer, Round] | None = None
        """What the donors pin on entry to a call that is still to come, or that is under way."""
        self._proof: Proof | None = None
        """Of such a call."""
        self._wave: Wave | None = None
        """What that question is about; None for all of the state."""
        self._ahead = 0
        """Calls ahead that the state is asked about: a follower computes nothing, and is in a call before the others are."""
        self._last_session: Session | None = None
        self._hopes = 0
        """Proofs that may still be asked for before all stripes are here, since a small state is here soon."""
        self._missed = 0
        """Proofs of calls that turned out to be of another kind than the program's."""
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
        proof = self._proof
        alike = results.layout.signature == self._first.layout.signature
        if proof is None or proof.number > results.number:
            self._same_kind(results, alike=alike)
            return False
        self._proof = None
        try:
            if not alike or proof.number != results.number:
                self._missed += 1
                self._same_kind(results, alike=alike)
                return False
            return self._looks(proof) and self._proved(proof) and self._caught_up(results.number)
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
        self._own = self._last_session = None
        asked, self._asked = list(self._asked.values()), {}
        if asked:
            threading.Thread(target=_release, args=(self._new_source(), asked), name="ftlib-release", daemon=True).start()

    # --- before a call -------------------------------------------------------------------------------------------------

    def _enter(self, session: Session, number: int) -> bool:
        plane = self._plane
        fresh, self._last_session = session is not self._last_session, session
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
        # The others are inside the first call of a view already, and wait for it to begin: they are not disturbed.
        round_, version = self._round, number + max(self._ahead, int(fresh))
        if self._question is None and not (fresh and round_ is None):
            self._ask(session, round_, version)
        if round_ is None:
            return plane.acting_in(session)
        round_.bulletin.tell()
        round_.brake(session, number, level=self._proof is not None and self._proof.number == number)
        if round_.level_with(number, but=1) or self._hopes:
            self._near_the_end(round_, session, number, version)
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
        begin = None
        if round_ is None:
            moment = session, plane.authority, turn, version, self._wave or Wave()
            begin = functools.partial(open_round, plane, registered, self._first, source, self._allowed, *moment)
        go_on = self._while_acting(session, version)
        self._question = Question(session, version, lambda go_on: ask(go_on=go_on), go_on, begin)

    def _begin(self, question: Question[Offer, Round]) -> None:
        """The call that it is about has ended: the donors have pinned the state as it was on entry, or have not."""
        session, version = question.session, question.version
        try:
            offer = question.result()
            if self._round is None:
                self._round = question.begun
                self._hopes = _TRIES if offer.nbytes < LARGE and len(offer.portions) == 1 else 0
            else:
                stripes = stripes_of(offer, session, self._turn(session), version, self._wave or Wave())
                self._round.add(offer, stripes, version)
        except (FetchError, Later) as error:
            self._unanswered(session, error)

    def _turn(self, session: Session) -> int:
        return session.view.index(self._plane.member_id) % len(session.plan.holders)

    def _near_the_end(self, round_: Round, session: Session, number: int, version: int) -> None:
        """All stripes are here, or will be soon, and all averages but for the last: what is left is small, or is compared."""
        proof = self._proof
        if proof is not None and (proof.session is not session or proof.number < number):
            proof.close()
            proof = self._proof = None
        if proof is None:
            # A program may repeat calls of several kinds, of which one is its average: whatever the rhythm, that is met.
            version += random.randrange(self._missed + 1)
            self._hopes = max(0, self._hopes - 1)
            proof = self._proof = Proof(round_, session, version, self._while_acting(session, version), self._failures)
        if proof.number == number and round_.level_with(number):
            proof.begin()

    def _looks(self, proof: Proof) -> bool:
        """Whether the state on entry to the call that has just been followed is here, or is in a moment."""
        round_ = self._round
        if not proof.begun and round_ is not None:
            with contextlib.suppress(ConfigError):  # raised on entry to the next call, which nobody has finished
                round_.brake(proof.session, proof.number, level=True, grace=_GRACE)
            if round_.level_with(proof.number):
                proof.begin()
        return proof.begun

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
        # Else its loader would go on after the others' last batch: it comes in with the next epoch.
        return not self._plane.data.left_behind(self._first.batches)

    def _unanswered(self, session: Session, error: Exception) -> None:
        """What was asked did not come: it is asked anew, unless that has happened too often."""
        if isinstance(error, Over) and self._ahead < _FURTHEST:
            self._ahead = max(1, 2 * self._ahead)
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
            if question.begun is not None:
                question.begun.end()

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
