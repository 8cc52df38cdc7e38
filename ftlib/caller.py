"""The training thread's way through one call: wait for a session, adopt or attempt, finish, deliver; again after a failure.

The user sees nothing of what happens in between. Failures are reported before the group is aborted, since aborting makes
healthy peers look guilty. What goes wrong for good is raised; whatever leaves a call by an exception aborts the group first,
so that nobody waits for this member in vain.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consensus import Consensus, LeftError

from .average import SETTLE, Attempt, Disagreement
from .awaiting import await_session
from .boundary import halted
from .bucket import Layout
from .call import Call, Results
from .donation import Adoption
from .errors import Excluded, GroupError, StateLost, StepMismatch
from .execution import Executor
from .follower import NoFollowing, Recovery, kept
from .following import Followed, FollowedAttempt, NobodyThere
from .inquiry import Entered, Inquiry
from .layout_book import LayoutBook
from .logs import about
from .patience import Patience
from .phase import Phase
from .plane import Plane
from .rebuild import Rebuilder
from .session import Session
from .staging import Slot, StagingPool
from .stand_in import Deputizing, StandIn
from .status import Status
from .tempo import note
from .trailer import Flag, Trailer
from .trailer import Slot as Saying
from .turns import Turns
from .unit import Unit
from .veto import Veto
from .waited_for import Limits, watch

__all__ = ["Caller", "Limits"]

logger = logging.getLogger("ftlib")

FOREIGN_CALLS = 16
"""So many calls a newcomer takes part in among members that have made none like its own: then they run another program."""


@dataclass(slots=True)
class _Waiting:
    """How long a newcomer has waited for a call like its own."""

    since: float
    foreign: int = 0
    """Calls that it met since then, one after the other, of members that have made none like its own."""

    def meet(self, *, foreign: bool) -> None:
        """The others are in another call."""
        self.foreign = self.foreign + 1 if foreign else 0


class Caller:
    """Carries out the calls of one lifetime, one at a time."""

    def __init__(
        self,
        plane: Plane,
        consensus: Consensus,
        rebuilder: Rebuilder,
        turns: Turns,
        limits: Limits,
        in_flight: int,
        inquiry: Inquiry | None = None,
        layouts: LayoutBook | None = None,
    ) -> None:
        """``inquiry``: tells a newcomer what the others are in; None where calls are all alike. ``layouts``: of all calls."""
        self._inquiry = inquiry
        self._turns = turns
        self._plane = plane
        self._consensus = consensus
        self._rebuilder = rebuilder
        self._limits = limits
        self._in_flight = in_flight
        self._pool = StagingPool(in_flight)
        self._threads = plane.threads
        self._veto = Veto(plane)
        self.said_goodbye = False
        """Whether a finished call said that this member leaves: everybody knows."""
        self.load_state: Callable[[Call, Session], bool] = lambda _call, _session: False
        """Loads registered state where this member lacks it (set by ``Lifetime``); whether it did."""
        self.recovery: Recovery | None = None
        """Gets it beside the others' calls, where it can (set by ``Lifetime``)."""
        self.entering: Callable[[int], None] = lambda _number: None
        """Told of the call that begins, before anything of it is under way: the state is what it is on entry to it."""
        self.ending: Callable[[int], None] = lambda _number: None
        """Told when its operations have ended, before anything is made of that: the state is still as on entry."""
        self.hand_on: Callable[[Call, Results], Sequence[Slot] | None] = lambda _call, _results: None
        """Takes a finished call's results for others; the buffers to use instead of theirs, None to keep these."""
        self.deputy: Deputizing | None = None
        """Takes part in calls while the program is late (set by ``Lifetime``)."""
        self._handed = False
        self.layouts = LayoutBook() if layouts is None else layouts
        self.units = Executor(plane, self._veto, self.layouts, self._watch, self._failed, self._abandon, self._stop)

    def run(self, call: Call) -> Status:
        """Finish ``call`` in this thread's turn; the status it ends with. Raises what ends this lifetime."""
        call.began = self._threads.now()
        if self._turns.departed:
            return Status.ABORT
        self._plane.tempo.entered(call.began)
        try:
            if self.deputy is not None and (status := self.deputy.arrive(call)) is not None:
                self._plane.data.passed(call)
                return status
            self._plane.enter(call)
            return self._run(call)
        except LeftError:
            self.units.leave(call)
            return Status.ABORT
        except (Excluded, StateLost):
            if not self._turns.leaving:
                raise
            return Status.ABORT  # it leaves anyway: the others were quicker
        except BaseException as error:
            self._undelivered(call, error)
            self.units.leave(call)
            raise
        finally:
            try:
                if self._plane.current is not None:
                    self._abandon()
            finally:
                if self.recovery is not None:
                    self.recovery.end()
                if self.deputy is not None:
                    self.deputy.leave(call)
                self._plane.tempo.left(self._threads.now())

    def stand_in(
        self, call: StandIn, sessions: Callable[[], Session | None], keep: Callable[[Results], Sequence[Slot]]
    ) -> bool:
        """Take part in one call of the others, in the deputy's thread and turn; whether it was finished.

        ``sessions``: where to act, None to withdraw. ``keep``: takes the results; the buffers to use instead of theirs.
        """
        results = None
        self._plane.enter(call)
        try:
            while results is None and (session := sessions()) is not None:
                if not self._adopts(call, session):
                    results = self._attempt(call, session)
                elif self._learnt(call, session):
                    results = self._adopt(call, session)
            if results is not None:
                self._pool.staging(results.layout).exchange(results.slots, keep(results))
        except BaseException as error:
            self._undelivered(call, error)
            raise
        finally:
            if self._plane.current is not None:
                self._abandon()  # where nothing is under way nobody sees it
        return results is not None

    def _undelivered(self, call: Call, error: BaseException) -> None:
        """Finished by all, and not delivered here (Ctrl-C, no memory)? This member differs from the others from now on."""
        if self._plane.current is None and 0 < call.number <= self._plane.finished:
            text = f"{call} was finished, but its result could not be delivered here ({type(error).__name__})"
            self._stop(Excluded(f"{text}: start this worker anew, as a joiner"))

    def forget(self) -> None:
        """Let go of all buffers, once no call is carried out here any more."""
        self._pool = StagingPool(self._in_flight)
        self.units.forget()
        self._plane.results = None

    def _run(self, call: Call) -> Status:
        staging = self._pool.staging(call.layout)
        if self._plane.phase is Phase.WAITING:
            staging.warm(kept(call.layout, self._limits.held))
            self._consensus.seek_admission()
            if self.recovery is not None and self._limits.may_be_spare:
                self.recovery.wait(call)
        staging.turn()
        found = self._carry_through(call)
        if found is None:
            return Status.FAIL
        results, session = found
        if call.void(results):
            if not results.finite:
                self._veto.explain(call, session)
            return Status.FAIL
        call.deliver(results)
        self._plane.counters.call_seconds.add(self._threads.now() - call.began)
        return Status.SUCCESS if session.size > 1 else Status.NO_NEED

    def _carry_through(self, call: Call) -> tuple[Results, Session] | None:
        """What ``call`` leads to, and where. None: to nothing, since too few are there, or this worker said goodbye before."""
        follows, patience, waiting = True, self._patience(call), _Waiting(self._threads.now())
        while (session := self._await_session(call, patience)) is not None:
            results, began = None, call.began
            if self._adopts(call, session) and self._is_own(call, session):
                results = self._adopt(call, session)
            elif follows and self.recovery is not None and self.recovery.wanted(call, session):
                results = self._follow(call, self.recovery)  # None: this call does not follow any more
                follows, session = results is not None, self._plane.session or session
            elif (entered := self._ask(call, session)) is Entered.OWN:
                results = self._own(call, session)
            elif entered is not Entered.UNKNOWN:
                waiting.meet(foreign=entered is Entered.FOREIGN)
                self._accompany(call, waiting)
            if results is not None and (self.said_goodbye or not self._plane.newcomer):
                return results, session
            if self.said_goodbye:
                return None
            if results is not None:
                self._stay_out(call)
                waiting = _Waiting(self._threads.now())
            call.check_untouched()
            if (
                call.began != began
            ):  # that of a unit, when its function has ended; that of a newcomer, with each call of the others
                patience = self._patience(call)
        return None

    def _own(self, call: Call, session: Session) -> Results | None:
        """An attempt at the program's call, with the state that the others have."""
        self.entering(call.number)
        if self.load_state(call, session):
            call.reloaded()
            self._pool.staging(call.layout).cool()  # of what was there for averages to be kept in
        return self._attempt(call, session)

    def _follow(self, own: Call, recovery: Recovery) -> Results | None:
        """Take part in the others' calls until one of them is ``own``: its results. None: ``own`` is in progress as before."""
        plane, name = self._plane, str(own)
        self.layouts.note(own.layout)
        try:
            while True:
                plane.turn_to(followed := Followed(self._threads.now(), veto=own.veto))
                results = self._followed(followed, recovery.enter)
                own.number = followed.number
                if self.said_goodbye:
                    break
                complete = recovery.finished(results)
                if (spare := recovery.kept(results)) is not None:
                    self._pool.staging(results.layout).exchange(results.slots, spare)
                if complete and results.layout.signature == own.layout.signature:
                    own.began = followed.began
                    return results
        except NoFollowing as reason:
            extra = about(plane, "no_following", why=str(reason))
            logger.warning("%s: %s; the others wait while this worker loads the state", name, reason, extra=extra)
            recovery.end()
            plane.counters.recovery_fallbacks += 1
        finally:
            own.reattach()  # averages were replayed through its tensors
            own.reloaded()
            self._pool.staging(own.layout).cool()
        self._back_to(own)
        return None

    def _ask(self, own: Call, session: Session) -> Entered:
        """What the others are in, where this worker is a newcomer; else they are in what it is in."""
        if self._inquiry is None or not self._plane.newcomer:
            return Entered.OWN
        if self._adopts(own, session):
            return Entered.OTHER  # it has been finished
        return self._inquiry.ask(own, session)

    def _is_own(self, own: Call, session: Session) -> bool:
        """Whether what the others have finished as call ``own.number`` is the program's call, which this member was in."""
        plane = self._plane
        if not plane.newcomer or self._inquiry is None:
            return True
        return session.plan.signature == own.layout.signature and plane.origin == plane.authority

    def _accompany(self, own: Call, waiting: _Waiting) -> None:
        """Take part in one call of the others, with nothing of the program's; ``own`` is in progress as before.

        StepMismatch where they never make one like ``own``, as far as can be seen.
        """
        plane = self._plane
        late = self._threads.now() > waiting.since + self._limits.step_timeout
        if late or waiting.foreign > FOREIGN_CALLS:
            how_long = f"within {self._limits.step_timeout:g} s" if late else f"so far, {waiting.foreign} of them since it came"
            error = StepMismatch(
                f"members entered calls with different tensors or operations: {own.layout.text} is this worker's first call, "
                f"and the others have made none like it {how_long}: run the same program everywhere (a worker that joins later "
                "comes in with a call of the loop: let its first one be such a call, and no barrier before the loop, say)"
            )
            self._stop(error)
            raise error
        plane.turn_to(followed := Followed(self._threads.now(), veto=self._limits.veto))
        try:
            self._followed(followed, lambda session, _number: plane.acting_in(session))
        except NoFollowing as reason:
            logger.debug("%s: %s", followed, reason, extra=about(plane, "no_following", why=str(reason)))
        self._back_to(own)

    def _stay_out(self, own: Call) -> None:
        """The call that would have been ``own`` is the others' last of their loop, and this program's loop would go on."""
        plane = self._plane
        text = (
            "%s: the others end their loop here, and this worker's loader has looked further ahead: it comes in with the next"
        )
        logger.info(text, own, extra=about(plane, "stays_out", call=own.number))
        own.reloaded()
        self._back_to(own)

    def _back_to(self, own: Call) -> None:
        own.began = self._threads.now()
        self._pool.staging(own.layout).turn()  # a survivor may still need the result of the call before
        self._plane.turn_to(own)

    def _followed(self, followed: Followed, enter: Callable[[Session, int], bool]) -> Results:
        """One call of the others, finished. ``enter``: as ``Recovery.enter``."""
        patience = self._patience(followed)
        while True:
            if (session := self._await_session(followed, patience)) is None:
                raise NoFollowing(f"fewer than {self._limits.min_size} members are there")
            if self._adopts(followed, session):
                results = self._adopt(followed, session) if self._learnt(followed, session) else None
            elif self._turns.says_goodbye or enter(session, followed.number):
                results = self._attempt(followed, session)
            else:
                results = None
            if results is not None:
                return results

    def _learnt(self, followed: Followed, session: Session) -> bool:
        """Whether it is known what the others finished; False where ``session`` has ended meanwhile."""
        try:
            followed.learn(self._layout(session, session.plan.signature))
        except GroupError as error:
            if self._plane.acting_in(session):
                raise NoFollowing(str(error)) from None
            return False
        return True

    def _layout(self, session: Session, start: bytes) -> Layout:
        assert self.recovery is not None  # only a follower may not know it
        return self.layouts.find(start) or self.recovery.layout(session, start)

    def _adopts(self, call: Call, session: Session) -> bool:
        return session.plan.donor_of(self._plane.member_id) is not None and call.number == session.plan.call

    def _patience(self, call: Call) -> Patience:
        return call.patience(self._limits.step_timeout, self._threads.now)

    def _await_session(self, call: Call, patience: Patience) -> Session | None:
        return await_session(self._plane, call, patience, self._limits, self.recovery)

    def _attempt(self, call: Call, session: Session) -> Results | None:
        """All operations in ``session``; None where it failed or was frozen meanwhile."""
        plane = self._plane
        call.address(session)
        if not (self.units.perform(call, session) if isinstance(call, Unit) else plane.begin(session)):
            return None
        share, goodbye = plane.data.share(call), self._turns.says_goodbye
        flags = (Flag.FREEZE if plane.wished else Flag(0)) | (Flag.LEAVING if goodbye else Flag(0))
        flags |= Flag.NONFINITE if self._veto.tainted else Flag(0)
        flags |= (Flag.FOLLOWING if call.foreign else Flag(0)) | (Flag.LATE if call.stand_in else Flag(0))
        given = (share.ahead, share.dropped, share.data_epoch, share.deal)
        saying = Saying(call.weight, share.samples, flags, call.layout.check, *given, plane.tempo.busy)
        if session.group is None:
            return self._alone(call, session, saying)
        if goodbye:
            self._consensus.commit_to_leave()  # before anybody can read it, and perhaps act on it, while this call fails here
        attempt = self._attempt_at(call, session)
        try:
            trailer, results = attempt.run(saying, self._in_flight, plane.entered)
        except NobodyThere:
            _, order = plane.failed(session, begun=False)
            if order is not None:
                self._rebuilder.order(order)
            return None
        except GroupError as error:
            self._failed(call, session, error)
            attempt.settle(SETTLE)
            if isinstance(error, Disagreement) and plane.member_id in error.blamed:
                raise StepMismatch(str(error)) from None  # the others' word for it may have stopped the plane first
            plane.counters.redone += 1
            return None
        except BaseException:
            self._abandon()
            attempt.settle(SETTLE)
            raise
        self.ending(call.number)
        return self._finish(call, session, trailer, results)

    def _attempt_at(self, call: Call, session: Session) -> Attempt:
        watch, now = self._watch(call, session), self._threads.now
        if isinstance(call, Followed):
            return FollowedAttempt(call, session, self._pool, watch, now, functools.partial(self._layout, session))
        self.layouts.note(call.layout)
        return Attempt(call, session, self._pool.staging(call.layout), watch, now)

    def _alone(self, call: Call, session: Session, saying: Saying) -> Results | None:
        """A single member needs no operation; what it did is the result."""
        intact = not (call.veto and call.spoilt())
        trailer = Trailer.of((saying,))
        return self._finish(call, session, trailer, Results(call.number, call.layout, (), trailer.weight, intact))

    def _finish(self, call: Call, session: Session, trailer: Trailer, results: Results) -> Results | None:
        with self._plane.changed:  # told before anybody can see the freeze: the consensus relies on that order
            finish = self._plane.finish(session, call, trailer, results)
            if finish is not None and finish.frozen:
                halted(self._plane, self._consensus, call, session, trailer)
                self.said_goodbye = session.rank in trailer.leaving
        if finish is None:
            self._plane.counters.redone += 1
            return None
        if finish.order is not None:
            self._rebuilder.order(finish.order)
        self.layouts.note(results.layout)
        self._consensus.average_success(call.number)
        self._veto.finished(session, trailer)
        note(self._plane, session, average=call.counts_as_step)
        self._hand(call, results)
        return results

    def _hand(self, call: Call, results: Results) -> None:
        """To whoever listens beside the job; the buffers too, as they may take longer to read them than the next call does."""
        spare = self.hand_on(call, results)
        if spare is not None:
            self._pool.staging(results.layout).exchange(results.slots, spare)
        elif self._handed:
            self._pool.staging(results.layout).cool()
        self._handed = spare is not None

    def _adopt(self, call: Call, session: Session) -> Results | None:
        """Take the result of this call from a survivor that had finished it."""
        plane = self._plane
        donor = session.plan.donor_of(plane.member_id)
        assert donor is not None and session.group is not None
        if not plane.begin(session):
            return None
        staging = self._pool.staging(call.layout)
        attempt = Attempt(call, session, staging, self._watch(call, session), self._threads.now)
        try:
            results = Adoption(call, session.group, session.ranks[donor], staging).receive(attempt.wait)
        except GroupError as error:
            self._failed(call, session, error)
            attempt.settle(SETTLE)
            plane.counters.redone += 1
            return None
        except BaseException:
            self._abandon()
            attempt.settle(SETTLE)
            raise
        if not plane.adopt(session, call, results):
            plane.counters.redone += 1
            return None
        self._veto.missed()
        self._consensus.average_success(call.number)
        self._hand(call, results)
        return results

    def _failed(self, call: Call, session: Session, error: GroupError) -> None:
        """Say so first, then abort: an aborted group makes healthy peers look guilty."""
        with self._plane.changed:  # see _finish
            first, order = self._plane.failed(session)
            if first:
                self._consensus.average_failure(call.number, session.members_of(error.peers))
        if first:
            extra = about(self._plane, "call_failed", call=call.number)
            logger.debug("%s failed in %s: %s", call, session, error, extra=extra)
        if session.group is not None:
            session.group.abort()
        if order is not None:
            self._rebuilder.order(order)
        if isinstance(error, Disagreement):
            logger.error("%s", error, extra=about(self._plane, "mismatch", call=call.number))
            if self._plane.member_id in error.blamed:
                self._stop(StepMismatch(str(error)))

    def _abandon(self) -> None:
        """This thread leaves its call by an exception: nobody may wait for it there."""
        number = self._plane.finished + 1
        with self._plane.changed:  # see _finish
            session, order = self._plane.abandon()
            if session is not None:
                self._consensus.average_failure(number, ())
        if session is not None and session.group is not None:
            session.group.abort()
        if order is not None:
            self._rebuilder.order(order)

    def _stop(self, error: Exception) -> None:
        group = self._plane.stop(error)
        if group is not None:
            group.abort()
        self._consensus.leave()

    def _watch(self, call: Call, session: Session) -> Callable[[float], None]:
        return functools.partial(watch, self._plane, self._limits, call, session, self._patience(call), self._consensus.confirm)
