"""Rule 1 of a replica of several processes: a call is finished once all members of the replica hold their shards' results.

Between the end of a call's operations and its finish a member says that it holds the result, and waits for the words of its
replica (``docs/replicas.md``). If a view change comes first, the flush report says what is held, and the next view's plan says
whether it is kept or done again. A replica that comes in agrees before that, at the border before its first call, whether all
of it begin with that call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import zlib
from collections.abc import Callable, Sequence

from consensus import CarefulLogger

from ...data.mates import Drawing
from ...errors import ConfigError, GroupError, StepMismatch
from ..calls.attempt import WAIT_SLICE
from ..calls.call import PREFACE, Call, CallOutcome, Kind, Results
from ..calls.session import Session
from ..plane.failures import Failures
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..replicas.words import Mates, ReplicaVerdict, Word, WordFlag
from ..tensors.trailer import Trailer
from .catching_up import CatchUp
from .waiting import Waiting, ended

logger = CarefulLogger("ftlib")

_SLICE = 0.005
"""Seconds between two looks whether the session has ended."""
_GRACE = 0.03
"""Seconds for which a freeze that is to come after the call waits for the words of the replica."""


def _never() -> bool:
    return False


class ShardAgreement:
    """Agrees with the other members of this replica. Used by the thread that carries out the calls."""

    def __init__(self, plane: Plane, waiting: Waiting, mates: Mates, failures: Failures) -> None:
        """Starts nothing."""
        self._plane = plane
        self._waiting = waiting
        self._mates = mates
        self._failures = failures

    def hold(self, call: Call, session: Session, results: Results, trailer: Trailer | None = None) -> Trailer | bool:
        """Hold ``results`` until all members of the replica do. False if the session ended before: then decide again.

        Returns the trailer as all shards together have it; True if there is none, as after an adoption. Where one shard has no
        result, ``results`` have none from here on.

        A freeze that is ordered for after this call does not wait long: the call may have failed in a mate's shard, and then no
        word comes before the next view. What is held goes into the report, and the next plan keeps it if it counts.
        """
        if not self._plane.hold(session, results, trailer):
            return False
        more = WordFlag.OUT * self._plane.data.stays_out(call, results) | WordFlag.SAVING * self._plane.saves.here
        word = word_about(session, call, results, trailer, more)
        drawing = self._plane.data.drawing(results)
        verdict = self._verdict(call, session, word._replace(drawn=drawing.pack()))
        if verdict is None:
            return False
        results.agreed_on(out=verdict.out, preface=verdict.preface)
        self._plane.saves.agree(writing=verdict.saving)
        same = self._draw_together(call, results, [Drawing.unpack(drawn) for drawn in verdict.drawn])
        if verdict.void or not verdict.alike or not same:
            if not verdict.alike and same:  # a filler has no weight
                logger.error(
                    "%s is applied by nobody: its shards are over different replicas",
                    call,
                    extra=self._plane.about("not_alike"),
                )
            results.refuse(declined=verdict.declined)
        if trailer is None:
            return True
        return dataclasses.replace(trailer, freeze=True) if verdict.freeze and not trailer.freeze else trailer

    def _draw_together(self, call: Call, results: Results, said: Sequence[Drawing]) -> bool:
        """Note what the processes of this replica have agreed on about the samples. False if they, or those of another replica,
        have computed the call from different ones, so that it has no result. StepMismatch if they will never agree.
        """
        if any(not said[0].alike(each) for each in said[1:]):
            error = StepMismatch(
                f"{call}: the processes of this replica deal the samples differently: give ElasticSampler the same dataset, "
                "batch size and seed at all of them, and call set_epoch with the same epochs"
            )
            self._failures.stop(error)
            raise error
        apart = Drawing.differ(said)
        if apart:
            text = "%s is applied by nobody: processes of one replica have drawn different samples, which go back"
            logger.warning(text, call, extra=self._plane.about("drawn_apart"))
        self._plane.data.agree(results, said)
        return not apart

    def counts(self, call: Call, session: Session) -> bool | None:
        """True if what the processes of this replica have computed for ``call`` counts; None if the session has ended.

        One of them may have got the state before the call, and its mates within it: founders the initial one, newcomers that of
        the others. Then the gradients of none of them count, or the shards of that call would be over different replicas.
        ConfigError if its founders begin from different steps.
        """
        if not self._plane.newcomer and (session.plan.call or call.number != 1):
            return True
        said = WordFlag.INSIDE | WordFlag.STALE * call.outdated
        word = Word.about_border(session.view.epoch, call.number, said)
        if not self._plane.newcomer and not call.outdated:
            word = word._replace(drawn=str(self._plane.step).encode())
        verdict = self._verdict(call, session, word)
        if verdict is not None and verdict.apart:
            steps = " and ".join(step.decode(errors="replace") for step in verdict.apart)
            error = ConfigError(
                f"{call}: the processes of this replica begin from different steps, {steps}: load the same checkpoint at all"
            )
            self._failures.stop(error)
            raise error
        return None if verdict is None else not (verdict.stale or verdict.midway)

    def border(self, call: CatchUp, session: Session, *, midway: bool) -> ReplicaVerdict | None:
        """What all of this replica say at the border before ``call``; None if the session ended before, or this worker leaves.

        ``midway``: that this member takes part in the call with nothing of its own. A mate may have gone on since an earlier
        view, with a state that is still the valid one; then this one does, too.
        """
        said = WordFlag.MIDWAY if midway else WordFlag(0)
        word = Word.about_border(session.view.epoch, call.number, said, call.turn(session.view.epoch), call.donor)
        return self._verdict(call, session, word, earlier=True, gives_up=self._plane.leaving)

    def passes(self, call: Call, session: Session) -> None:
        """Say that this newcomer takes part in call ``call.number`` with nothing of its own: so do all of its replica."""
        said = WordFlag.MIDWAY | WordFlag.INSIDE
        self._mates.vouch(Word.about_border(session.view.epoch, call.number, said))

    def _verdict(
        self,
        call: Call,
        session: Session,
        word: Word,
        *,
        earlier: bool = False,
        gives_up: Callable[[], bool] = _never,
    ) -> ReplicaVerdict | None:
        """What all of this replica say, ``word`` included; None if the session ended before, or this member ``gives_up``."""
        self._mates.enter(word, earlier=earlier)
        began, ordered = self._waiting.now(), 0.0
        while (verdict := self._mates.verdict(_SLICE)) is None:
            now = self._waiting.now()
            ordered = ordered or (now if self._plane.ordered else 0.0)
            if not self._plane.acting_in(session) or (ordered and now - ordered > _GRACE):
                if self._plane.phase is Phase.STOPPED:
                    raise ended(self._plane)
                self._failures.withdraw(session)
                return None
            seconds = now - began
            if gives_up():
                return None
            if seconds > WAIT_SLICE:
                with contextlib.suppress(GroupError):  # the session has ended this moment
                    self._waiting.waited(call, session, seconds, self._blocking)
        return verdict

    def _blocking(self) -> str:
        return f"waiting for the word of {self._mates.missing()}"


def word_about(session: Session, call: Call, results: Results, trailer: Trailer | None, more: int = 0) -> Word:
    """What this member says of the results that it holds. ``more``: flags that do not follow from them."""
    flags = WordFlag(more) | WordFlag.VOID * call.void(results) | WordFlag.DECLINED * results.outcome.declined
    flags |= WordFlag.PREFACE * (results.preface or call.layout.kind == PREFACE)
    ranks = 0
    if trailer is not None:
        flags |= WordFlag.FREEZE if trailer.freeze else WordFlag(0)
        # Who declines has no weight in its shard alone.
        if call.kind is Kind.AVERAGE and results.outcome is not CallOutcome.DECLINED_HERE:
            ranks = zlib.crc32(bytes(slot.weight > 0.0 for slot in trailer.slots)) or 1
    return Word(session.view.epoch, call.number, flags, ranks)


def word_of_the_finished(plane: Plane, session: Session) -> Word | None:
    """What this member says in a new view of the newest call: it has finished that, so rule 1 holds again in this view.

    None if it has not; it says so later, once it holds the result or the state. None before the first call, too.
    """
    plan, own_id = session.plan, plane.member_id
    if not plan.call or session.keeps or plan.donor_of(own_id) is not None or own_id in (*plan.blank, *plan.healed):
        return None
    said = WordFlag.VOID * plane.void | WordFlag.OUT * plane.newcomer | WordFlag.SAVING * plane.saves.replica
    said |= WordFlag.DECLINED * plane.outcome.declined | WordFlag.PREFACE * plane.preface
    drawn = b"" if plane.drawing is None else plane.drawing.pack()
    return Word(session.view.epoch, plan.call, said, drawn=drawn)
