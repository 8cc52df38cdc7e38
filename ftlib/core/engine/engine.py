"""How a call is carried out: wait for a group, decide what the call does in it, and do that; after a failure, start again.

The program sees nothing of what happens in between. ``Engine._carry_out`` is the whole course of a call, ``decide`` its one
decision, and ``Engine.attempt`` the place where a failure shows. Permanent errors are raised. An exception that ends a call
first aborts the group, so that no member waits for this one in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from consensus import Consensus, LeftError

from ...common.memory import room
from ...errors import Excluded, FTLibError, GroupError, RebuildTimeout, StateLost, StepMismatch
from ...state.registry import Registered
from ...status import Status
from ..calls.adoption import Adoption, another_call
from ..calls.attempt import SETTLE, Attempt, CallDeclined, Disagreement
from ..calls.call import Call, CallOutcome, Kind, Results
from ..calls.compressed_attempt import CompressedAttempt
from ..calls.device_attempt import DeviceAttempt
from ..calls.follow import Declined, Followed, FollowedAttempt, NobodyThere
from ..calls.learner import NoFollowing, Recovery, kept
from ..calls.observer import Observers
from ..calls.open_attempt import OpenAttempt
from ..calls.open_call import OpenCall
from ..calls.session import Session
from ..execute.execution import Executor, Means
from ..execute.unit import Unit
from ..plane.boundary import halted
from ..plane.failures import Failures
from ..plane.hang import log_stragglers
from ..plane.nonfinite_check import NonfiniteCheck
from ..plane.orders import Finish
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..plane.rebuild import Rebuilder
from ..plane.step_times import QUIET, coded, seconds
from ..replicas.words import Mates
from ..tensors.layout import Layout
from ..tensors.layout_book import LayoutBook
from ..tensors.staging import Allocate, Slot, StagingPool
from ..tensors.trailer import Flag, RankRecord, Trailer
from .arrival import Arrival
from .call_lock import CallLock
from .catching_up import CatchUp, Obtain, Obtained, caught_up
from .inquiry import Entered, Inquiry
from .open_calls import Move, OpenCalls, OpenFacts, next_move
from .shard_agreement import ShardAgreement
from .transport import Transport
from .waiting import Limits, Waiting


class Next(Enum):
    """What a call does in a session."""

    ADOPT = "the others have finished it: take its result from one of them"
    KEEP = "the others have finished it, and its result is here: finish it, too, once all of this replica hold theirs"
    FOLLOW = "take part in the others' calls until the state is here, beside them; then it is one of theirs"
    ASK = "find out which call the others are in"
    ACCOMPANY = "the others are in another call: take part in that one, with nothing of the program's"
    WAIT = "the session has ended"
    LOAD = "get the state, while the others wait; then as ATTEMPT"
    ATTEMPT = "carry out its operations"


@dataclass(frozen=True, slots=True)
class Facts:
    """The inputs of a decision, besides the call and the session."""

    level: bool
    """True if this member has the valid state."""
    newcomer: bool = False
    """True if the program may be at another place than the others' programs."""
    follows: bool = False
    """True if this member can take part in the others' calls until it has the state."""
    others: Entered | None = None
    """Which call the others are in, if a newcomer has asked."""
    accompanied: bool = False
    """True if this newcomer took part, with nothing of its own, in the call whose result it holds."""


LEVEL = Facts(level=True)
"""The facts of a member that is no newcomer and has the state: in a job that just trains, always these."""


def decide(call: Call, session: Session, facts: Facts) -> Next:
    """What ``call`` does in ``session``."""
    if session.keeps and call.number == session.plan.call:
        return Next.ACCOMPANY if facts.accompanied else Next.KEEP
    finished = session.donor is not None and call.number == session.plan.call
    # For a newcomer the finished call is its program's own only if the signatures match, and it had the others' state in it.
    if finished and (not facts.newcomer or (facts.level and call.layout.same_call(session.plan.signature))):
        return Next.ADOPT
    if facts.follows:
        return Next.FOLLOW
    if facts.newcomer:
        if finished:
            return Next.ACCOMPANY
        if facts.others is not Entered.OWN:
            return _OTHERS[facts.others]
    return Next.ATTEMPT if facts.level else Next.LOAD


_OTHERS = {
    None: Next.ASK,
    Entered.UNKNOWN: Next.WAIT,
    Entered.OTHER: Next.ACCOMPANY,
    Entered.FOREIGN: Next.ACCOMPANY,
}


class Engine:
    """Carries out the calls of one lifetime, one at a time."""

    def __init__(
        self,
        plane: Plane,
        consensus: Consensus,
        rebuilder: Rebuilder,
        call_lock: CallLock,
        limits: Limits,
        in_flight: int,
        *,
        load: Callable[[Call, Session], bool],
        obtain: Obtain | None = None,
        registered: Callable[[], Registered | None] = lambda: None,
        inquiry: Inquiry | None = None,
        recovery: Recovery | None = None,
        admission: Callable[[Call], None] | None = None,
        observers: Observers | None = None,
        layouts: LayoutBook | None = None,
        allocate: Allocate = room,
        mates: Mates | None = None,
    ) -> None:
        """``load``: loads registered state if this member lacks it; returns True if it did. ``obtain``: the same between two
        calls. ``registered``: returns the registered objects, if any.

        ``inquiry``: asks for a newcomer which call the others are in; None if all calls are alike. ``recovery``: gets the state
        beside the others' calls. ``admission``: waits, in the first call, until this member is in a view; None if that takes no
        longer than any other wait of a call. ``layouts``: the layouts of all calls. ``allocate``: returns memory for operations
        (see ``Framework``). ``mates``: the other members of this one's replica; None if it is a replica by itself.
        """
        self._plane = plane
        self._consensus = consensus
        self._rebuilder = rebuilder
        self._call_lock = call_lock
        self._limits = limits
        self._in_flight = in_flight
        self._load = load
        self._obtain = obtain
        self._admission = admission
        self._observers = Observers() if observers is None else observers
        self._layouts = LayoutBook() if layouts is None else layouts
        self._newest: Layout | None = None
        """The layout that was noted last."""
        self._threads = plane.threads
        self._allocate = allocate
        self._pool = StagingPool(in_flight, allocate)
        self._handed = False
        """True if an observer kept the slots of the newest results."""
        self._nonfinite = NonfiniteCheck(plane)
        self._transport = Transport(plane)
        self._failures = Failures(plane, consensus, rebuilder)
        self._waiting = Waiting(plane, limits, consensus.confirm)
        means = Means(plane, self._failures, self._waiting, self._nonfinite, self._layouts, registered, allocate)
        self._units = Executor(means)
        self._shards = None if mates is None else ShardAgreement(plane, self._waiting, mates, self._failures)
        self._arrival = Arrival(plane, limits, self._failures, inquiry, recovery, self._layouts, self._waiting)
        self._open = OpenCalls(plane, self._failures, self._waiting, call_lock, limits.min_size)
        self.said_goodbye = False
        """True once a finished call announced that this member leaves: all members know."""
        self._owed = 0
        """Calls that the program has given up since the last finished one, as fewer than ``min_size`` members were there.
        Others may be in them yet, so they are declined before the program's next call (see ``_pay``)."""

    def run(self, call: Call) -> Status:  # noqa: PLR0912 - one case an outcome
        """Finish ``call`` in this thread's turn; returns its status. Raises the error that ends this lifetime."""
        plane = self._plane
        if self._call_lock.departed:
            self._open.abandon()
            return Status.ABORT
        begun = self._open.take(call) if isinstance(call, OpenCall) else None
        try:
            found = None
            if begun is not None:
                found = self._end(begun)
            else:
                if self._owed and not isinstance(call, CatchUp) and not self._pay():
                    return self._give_up(call)
                plane.enter(call)
                plane.counters.time_use.entered(call.began)
                staging = self._pool.staging(call.layout)
                if plane.phase is Phase.WAITING:
                    self._admit(call)
                if isinstance(call, CatchUp):
                    return self._catch_up(call)
                staging.turn(plane.needed)
            found = found or self._carry_out(call)
            return self._give_up(call) if found is None else self._delivered(call, *found)
        except LeftError:
            self._units.leave(call)
            return Status.ABORT
        except (Excluded, StateLost):
            if not self._call_lock.leaving:
                raise
            return Status.ABORT  # this worker leaves anyway: the others were quicker
        except BaseException as error:
            self._failures.undelivered(call, error)
            self._units.leave(call)
            raise
        finally:
            try:
                if plane.current is not None or self._arrival.call is not None:
                    self._break_off()
            finally:
                plane.counters.time_use.left(self._threads.now())

    def _give_up(self, call: Call) -> Status:
        """The program goes on without ``call``: too few members are there, or this worker said goodbye."""
        if call.changes_state and not self.said_goodbye:  # a unit has no status to return
            least = self._limits.min_size
            raise RebuildTimeout(f"{call}: fewer than {least} members were there for {self._limits.step_timeout:g} s")
        if not self.said_goodbye and not self._plane.newcomer:  # a newcomer asks where the others are
            self._owed += 1
        return Status.FAIL

    @property
    def owes(self) -> bool:
        """True while others may be in a call that the program has given up."""
        return self._owed > 0

    def _pay(self) -> bool:
        """Decline the calls that the program has given up: then they have no result at any member. All programs are at the same
        call again, also those that were still waiting as more members came. False if too few are there even now, or this
        worker said goodbye.
        """
        plane = self._plane
        while self._owed:
            own = Declined(veto=False)
            plane.enter(own)
            plane.counters.time_use.entered(own.began)
            try:
                found = self._carry_out(own)
            except NoFollowing as reason:
                raise FTLibError(f"a call that this worker gave up cannot be ended: {reason}") from None
            if found is None:
                return False
            plane.counters.time_use.left(self._threads.now())
            if not found[0].outcome.declined:  # it was finished in a view that this member was not in
                raise Excluded(f"the others have finished {own}, which this worker gave up: it needs their state")
            self._owed -= 1
        return True

    def _break_off(self) -> None:
        """The program leaves a call that was not finished, or in which this member was arriving."""
        try:
            if self._plane.current is not None:
                self._failures.abandon()
        finally:
            if self._arrival.call is not None:
                self._arrival.end()

    def _catch_up(self, call: CatchUp) -> Status:
        """Get the state between two calls of the others. NO_NEED if it is here already."""
        plane, arrival, waiting = self._plane, self._arrival, self._waiting
        assert self._obtain is not None
        arrival.begin(call)
        came = caught_up(
            call,
            plane,
            self._limits.step_timeout,
            session_for=lambda own: plane.ready(self._limits.min_size) or waiting.session(own),
            obtain=self._obtain,
            agree=None if self._shards is None else self._agree,
            accompany=lambda own: arrival.accompany(self, own),
        )
        return Status.SUCCESS if came else Status.NO_NEED

    def _agree(self, call: CatchUp, session: Session, found: Obtained) -> Obtained:
        """What the processes of this replica have got at the border before ``call``: each other's state has to fit."""
        assert self._shards is not None
        verdict = self._shards.border(call, session, midway=found is Obtained.MIDWAY)
        if verdict is None:
            return Obtained.OVER
        if verdict.midway or not verdict.alike:
            self._plane.unload()
            return Obtained.MIDWAY if verdict.midway else Obtained.APART
        return Obtained.HERE

    @property
    def drain_patience(self) -> float:
        """Seconds that a worker that has to leave waits for what ends soon."""
        return self._limits.drain_patience

    # --- an open call ---------------------------------------------------------------------------------------------------

    def open(self, call: OpenCall) -> bool:
        """Enter ``call`` in the middle of backward, if that may be; then ``advance`` it, and ``run`` it at the end of backward,
        or ``abandon`` it.
        """
        plane, session = self._plane, None if self._owed else self._open.may_enter(call)
        early, count = session is not None, len(call.layout.buckets)
        early = early and (self._shards is None or (plane.finished > 0 and not plane.newcomer))  # before: see ``_counts``
        facts = OpenFacts(entered=False, early=early, failed=False, complete=1, begun=0, count=count, room=True)
        if next_move(facts) is not Move.ENTER or session is None:
            return False
        try:
            with plane.changed:  # or a donor would take it for one that changes nothing, and a flush report for a certain one
                plane.enter(call)
                plane.counters.time_use.entered(call.began)
                plane.computes(call, True)
            staging = self._pool.staging(call.layout).turn(plane.needed)
            record, goodbye = self._record(call)
            if goodbye:
                self._consensus.commit_to_leave()
            if call.layout is not self._newest:
                self._note(call.layout)
            self._open.enter(call, session, staging, record)
        except BaseException:  # Ctrl-C, or no memory
            self.abandon()
            if plane.current is call:  # without an attempt yet
                self._failures.abandon()
            raise
        return True

    def advance(self, complete: int) -> None:
        """The gradients of so many buckets of the open call are complete: begin what may begin."""
        self._open.advance(complete)

    def stage(self, number: int, index: int) -> None:
        """The gradient of parameter ``index`` is complete, the rest of bucket ``number`` of the open call is not."""
        self._open.stage(number, index)

    def restart(self) -> None:
        """An input of the open call has changed after it was staged: redo it at the end of backward."""
        self._open.restart()

    def abandon(self) -> None:
        """The open call gets no gradients. Idempotent."""
        self._open.abandon()
        self._plane.counters.time_use.left(self._threads.now())

    def _end(self, attempt: OpenAttempt) -> tuple[Results, Session] | None:
        """Backward has ended: finish what is under way. None if it failed: decide again in the next view."""
        plane, call, session = self._plane, attempt.call, attempt.session
        now = self._threads.now()
        plane.counters.time_use.computed(now)
        plane.counters.time_use.carry(now - call.began)
        call.restart(now)  # the deadline of a call counts what it waits for, not what the program computes
        plane.computed(call)
        if self._observers.present:
            try:
                self._observers.entering(call.number)  # not before, as backward may have changed buffers until now
            except BaseException:
                self._failures.abandon()
                attempt.settle(SETTLE)
                raise
        results = self.attempt(call, session, attempt)
        if results is not None:
            return results, session
        call.check_untouched()
        return None

    # --- the story of a call -------------------------------------------------------------------------------------------

    def _carry_out(self, call: Call) -> tuple[Results, Session] | None:
        """The results of ``call``, and their session. None if too few members are there, or this worker said goodbye before."""
        plane = self._plane
        # A session has a plan, equal at all members, which says who has finished which call.
        while (session := plane.ready(self._limits.min_size) or self._waiting.session(call)) is not None:
            facts = LEVEL if plane.level and (call.declines or not plane.newcomer) else self._facts(call, session)
            step = decide(call, session, facts)
            if step is Next.ADOPT or step is Next.KEEP:
                known = not isinstance(call, Followed) or session.keeps or self._arrival.learnt(call, session)
                results = self.adopt(call, session) if known else None
            elif step is Next.ATTEMPT or step is Next.LOAD:
                if self._observers.present:
                    self._observers.entering(call.number)
                if step is Next.LOAD:
                    self._get_state(call, session)
                counts = self._shards is None or self._counts(self._shards, call, session)
                results = self.attempt(call, session) if counts else None
            elif step is Next.FOLLOW:
                results = self._arrival.follow(self, call)
                session = plane.session or session
            elif step is Next.ACCOMPANY:
                results = self._accompany(call, session)
            elif step is Next.ASK:
                results = self._arrival.ask(call, session)
            else:
                results = None
            if results is not None and (self.said_goodbye or not plane.newcomer):
                return results, session
            if self.said_goodbye:
                return None
            if results is not None:
                self._arrival.stay_out(self, call)
            call.check_untouched()  # it failed: in the next view decide again, to adopt it or redo it from the same inputs
        return None

    def _get_state(self, call: Call, session: Session) -> None:
        """Load the state that this member lacks, while the others wait. LeftError if it has to leave without it."""
        if not self._load(call, session):
            return
        if isinstance(call, OpenCall) and self._plane.leaving() and not self._plane.level:
            raise LeftError("asked to leave before it had the state, and with it the order of the buckets")
        self.reloaded(call)

    def _accompany(self, call: Call, session: Session) -> Results | None:
        """Take part in the others' call with nothing of the program's, and so do all processes of this replica."""
        if self._shards is not None:
            self._shards.passes(call, session)
        return self._arrival.accompany(self, call)

    def _counts(self, shards: ShardAgreement, call: Call, session: Session) -> bool:
        """Agree with this replica, before its first call, whether what it has computed counts. False if the session ended."""
        counts = shards.counts(call, session)
        if counts is False and not call.outdated:
            self.reloaded(call)
        return counts is not None

    def attempt(  # noqa: C901, PLR0912 - one case an outcome, on one screen
        self, call: Call, session: Session, begun: OpenAttempt | None = None
    ) -> Results | None:
        """Carry out all operations in ``session``; None if one failed, or there was a freeze meanwhile.

        ``begun``: the attempt at an open call, to be ended.
        """
        plane = self._plane
        if begun is None:
            if call.root_rank is not None:
                call.address(session)
            if not (self._units.perform(call, session) if isinstance(call, Unit) else plane.begin(session)):
                return None
            record, goodbye = self._record(call)
            if session.group is None:
                return self._alone(call, session, record)
            if goodbye:
                self._consensus.commit_to_leave()  # before a member can read the goodbye and act on it, while the call fails
            attempt = self._operations(call, session)
        else:
            attempt, record = begun, begun.record
        try:
            trailer, results = attempt.run(record, self._in_flight)
        except CallDeclined:
            trailer, results = attempt.declined()
        except NobodyThere:
            self._failures.withdraw(session)
            return None
        except GroupError as error:
            if begun is None or begun.failure is None:  # else it was reported in backward
                self._failures.report(call, session, error)  # also aborts: all operations under way end, here and at the peers
            attempt.settle(SETTLE)
            if isinstance(error, Disagreement) and plane.member_id in error.blamed:
                raise StepMismatch(str(error)) from None  # the others' report may have stopped the plane first
            plane.counters.redone += 1
            return None
        except BaseException:
            self._failures.abandon()
            attempt.settle(SETTLE)
            raise
        if self._observers.present:
            self._observers.ended(call.number)
        return self._finish(call, session, trailer, results)

    def adopt(self, call: Call, session: Session) -> Results | None:
        """Take the result of ``call`` from a survivor that finished it; or keep the one that is here, where all finish that."""
        if session.keeps:
            return self._keep(call, session)
        plane, group, donor = self._plane, session.group, session.donor
        assert donor is not None and group is not None
        if not plane.begin(session):
            return None
        staging = self._pool.staging(call.layout)
        attempt = Attempt(call, session, staging, self._waiting)
        try:
            results = Adoption(call, group, session.ranks[donor], staging).receive(attempt.wait)
        except GroupError as error:
            self._failures.report(call, session, error)
            attempt.settle(SETTLE)
            plane.counters.redone += 1
            return None
        except BaseException:
            self._failures.abandon()
            attempt.settle(SETTLE)
            raise
        return self._adopted(call, session, results)

    def _keep(self, call: Call, session: Session) -> Results | None:
        """Finish ``call`` with the result that is here since an earlier session, once all of this replica hold theirs.

        StepMismatch if the program has left that call by an exception, and makes another one.
        """
        plane = self._plane
        results = plane.held
        if not plane.begin(session) or results is None:
            return None
        if isinstance(call, Followed):
            call.learn(results.layout)
        elif results.signature and not call.layout.same_call(results.signature):
            raise another_call(call)
        return self._adopted(call, session, results)

    def _adopted(self, call: Call, session: Session, results: Results) -> Results | None:
        """Finish ``call`` with a result that was not reduced in ``session``. None if that has ended."""
        plane = self._plane
        agreed = self._shards is None or self._shards.hold(call, session, results)
        finish = plane.adopt(session, call, results) if agreed else None
        if finish is None:
            plane.counters.redone += 1
            return None
        if finish.order is not None:
            self._rebuilder.order(finish.order)
        self._nonfinite.missed()
        self._finished(call, results)
        return results

    def _facts(self, call: Call, session: Session) -> Facts:
        """The facts for the decision about ``call``, if this member lacks the state or is a newcomer."""
        arrival = self._arrival
        if call.declines:  # wherever the program is: any call of the others will do
            return Facts(self._plane.level)
        newcomer, accompanied = arrival.newcomer, self._plane.newcomer and self._plane.held_foreign
        return Facts(self._plane.level, newcomer, arrival.follows(call, session), arrival.others(session), accompanied)

    # --- its parts -----------------------------------------------------------------------------------------------------

    def _record(self, call: Call) -> tuple[RankRecord, bool]:
        """This member's rank record for the attempt that begins; True if it says goodbye."""
        plane, call_lock = self._plane, self._call_lock
        flags, goodbye = 0, call_lock.noticed and call_lock.says_goodbye
        if plane.boundary_requested or goodbye or self._nonfinite.tainted or call.foreign or call.declines:
            flags = Flag.FREEZE * plane.boundary_requested | Flag.LEAVING * goodbye | Flag.NONFINITE * self._nonfinite.tainted
            flags |= Flag.FOLLOWING * (call.foreign or call.declines) | Flag.LATE * call.by_backup
            flags |= Flag.DECLINES * call.declines
        busy = coded(plane.counters.time_use.outside)
        if plane.data.sampler is None:
            return RankRecord(call.weight, 0, flags, call.layout.check, busy=busy), goodbye
        share = plane.data.share(call)
        given = (share.ahead, share.dropped, share.data_epoch, share.deal, share.end)
        return RankRecord(call.weight, share.samples, flags, call.layout.check, *given, busy), goodbye

    def _operations(self, call: Call, session: Session) -> Attempt:
        if isinstance(call, Followed):
            return FollowedAttempt(call, session, self._pool, self._waiting, self._arrival.layout, self._plane)
        if call.layout is not self._newest:
            self._note(call.layout)
        kind = DeviceAttempt if call.on_devices else CompressedAttempt if call.layout.compression else Attempt
        return kind(call, session, self._pool.staging(call.layout), self._waiting, self._plane)

    def _alone(self, call: Call, session: Session, record: RankRecord) -> Results | None:
        """A single member needs no operation: its own input is the result."""
        intact = not (call.veto and call.spoilt())
        trailer = Trailer.of((record,))
        given = (call.number, call.layout, (), trailer.weight, intact)
        results = Results(*given, view_id=session.view.view_id, declined=trailer.declined)
        return self._finish(call, session, trailer, results)

    def _finish(self, call: Call, session: Session, trailer: Trailer, results: Results) -> Results | None:
        """Finish ``call`` here. None if a freeze came first: then the next session finishes it, by adoption or redo."""
        plane = self._plane
        if self._shards is not None:
            agreed = self._shards.hold(call, session, results, trailer)
            if not isinstance(agreed, Trailer):
                plane.counters.redone += 1
                return None
            trailer = agreed
        finish = (self._halt if trailer.freeze else plane.finish)(session, call, trailer, results)
        if finish is None:
            plane.counters.redone += 1
            return None
        if finish.order is not None:
            self._rebuilder.order(finish.order)
        if results.layout is not self._newest:
            self._note(results.layout)
        if call.on_devices:
            self._transport.note(call, session, trailer, accelerated=results.accelerated)
        if self._nonfinite.asks:
            self._nonfinite.finished(session, trailer)
        codes = session.codec.busy if session.group is not None else bytes([coded(plane.counters.time_use.outside)])
        verdict = plane.step_times.note(session.by_rank, codes, average=call.kind is Kind.AVERAGE)
        if (slowest := max(codes)) > (own := codes[session.rank]) > 0 and not call.by_backup:
            plane.counters.time_use.behind(seconds(slowest) - seconds(own))
        if verdict is not QUIET:
            log_stragglers(plane, session, verdict)
        self._finished(call, results)
        return results

    def _halt(self, session: Session, call: Call, trailer: Trailer, results: Results) -> Finish | None:
        """As ``Plane.finish``, for a call after which all members freeze."""
        with self._plane.changed:  # notify before any thread can see the freeze: the consensus relies on that order
            finish = self._plane.finish(session, call, trailer, results)
            if finish is not None:
                halted(self._plane, self._consensus, call, session, trailer)
                self.said_goodbye = session.rank in trailer.leaving
        return finish

    def _finished(self, call: Call, results: Results) -> None:
        """Notify the observers. One may keep the buffers, as reading them takes longer than the next call."""
        self._consensus.average_success(call.number)
        if results.layout.compression is not None and not call.void(results):
            memory = self._pool.staging(results.layout).memory
            memory.finished(results.number, results.view_id, checked=call.veto)
        instead: Sequence[Slot] | None = self._observers.finished(call, results) if self._observers.present else None
        if instead is not None:
            self.keep(results, instead)
        elif self._handed:
            self._pool.staging(results.layout).cool()
        self._handed = instead is not None

    def _delivered(self, call: Call, results: Results, session: Session) -> Status:
        if call.void(results):
            if results.outcome.declined:
                call.ends_declined(preface=results.preface)
            elif call.veto and results.outcome is not CallOutcome.INTACT and call.kind is not Kind.VOTE:
                self._nonfinite.explain(call, session, elsewhere=results.outcome is CallOutcome.VOID_ELSEWHERE)
            return Status.FAIL
        plane = self._plane
        call.deliver(results, views=call.views and plane.has_state)  # else nothing could replace results that are changed
        plane.counters.call_seconds.add((now := self._threads.now()) - call.began)
        if plane.traces is not None:
            view, so_far, size = session.whole, plane.counters, session.size
            redone, adopted = so_far.redone, so_far.adopted
            plane.traces.called(
                (call.number, call.kind, call.nbytes, call.began, now, view.view_id, view.epoch, size, redone, adopted)
            )
        return Status.SUCCESS if session.size > 1 else Status.NO_NEED

    def _admit(self, call: Call) -> None:
        """Seek admission: this member is in no view yet, and with this call it is ready for one."""
        plane = self._plane
        self._pool.staging(call.layout).warm(kept(call.layout, self._limits.held))
        self._consensus.seek_admission()
        self._arrival.look_ahead(call)
        if self._admission is not None:
            began = self._threads.now()
            self._admission(call)
            plane.counters.time_use.waited(self._threads.now() - began)
            self._arrival.begin(call)  # so that everything begun meanwhile ends with the call

    def _note(self, layout: Layout) -> None:
        self._newest = layout
        self._layouts.note(layout)

    # --- calls that are not the program's ------------------------------------------------------------------------------

    def take_part(
        self, followed: Followed, sessions: Callable[[], Session | None], enter: Callable[[Session, int], bool]
    ) -> Results | None:
        """Take part in ``followed``, a call of the others that this member is in; None once ``sessions`` returns None.

        ``sessions``: returns the session to act in. ``enter``: as ``Recovery.enter``.
        """
        while (session := sessions()) is not None:
            results = None
            if (session.donor is not None or session.keeps) and followed.number == session.plan.call:
                if session.keeps or self._arrival.learnt(followed, session):
                    results = self.adopt(followed, session)
            elif enter(session, followed.number):
                results = self.attempt(followed, session)
            if results is not None:
                return results
        return None

    def follow(self, followed: Followed, enter: Callable[[Session, int], bool]) -> Results:
        """As ``take_part``, for as long as it takes. NoFollowing if too few members are there, or none but this one."""
        plane = self._plane

        def sessions() -> Session | None:
            return plane.ready(self._limits.min_size) or self._waiting.session(followed)

        def goes_in(session: Session, number: int) -> bool:
            if session.group is None:  # its state would be void after a call that was not its program's, and nobody else has it
                raise NoFollowing("nobody is left whose call this would be")
            return self._call_lock.says_goodbye or enter(session, number)

        results = self.take_part(followed, sessions, goes_in)
        if results is None:
            raise NoFollowing(f"fewer than {self._limits.min_size} members are there")
        return results

    def run_backup(
        self, call: Followed, sessions: Callable[[], Session | None], keep: Callable[[Results], Sequence[Slot]]
    ) -> bool:
        """Take part in one call of the others, in a backup worker's thread and turn; True if it was finished.

        ``sessions``: returns the session to act in, None to withdraw. ``keep``: takes the results, and returns buffers to use
        instead of theirs.
        """
        try:
            self._plane.enter(call)
            results = self.take_part(call, sessions, lambda _session, _number: True)
            if results is not None:
                self.keep(results, keep(results))
        except BaseException as error:
            self.undelivered(call, error)
            raise
        finally:
            if self._plane.current is not None:
                self._failures.abandon()  # unnoticed by others if nothing is under way
        return results is not None

    def decided(self) -> None:
        """Whether the call just followed has given this member the state is known: carry out a freeze that waited for that."""
        order = self._plane.decided()
        if order is not None:
            self._rebuilder.order(order)

    def keep(self, results: Results, instead: Sequence[Slot]) -> None:
        """Leave the slots of ``results`` to the observer that keeps them, and use the slots ``instead`` from now on."""
        results.keep()
        self._pool.staging(results.layout).exchange(results.slots, instead)

    def undelivered(self, call: Call, error: BaseException) -> None:
        """See ``Failures``."""
        self._failures.undelivered(call, error)

    def reloaded(self, own: Call) -> None:
        """The registered state has changed since the program made its call."""
        own.reloaded()
        self._pool.staging(own.layout).cool()  # drops the buffers for averages to keep
        self._pool.owe_nothing()

    def turn_back(self, own: Call) -> None:
        """Go on with the program's call, after calls of the others."""
        self._pool.staging(own.layout).turn(self._plane.needed)
        self._plane.turn_to(own)

    def fail(self, error: Exception) -> None:
        """End this lifetime because of ``error``; on any thread."""
        self._failures.stop(error)

    def forget(self) -> None:
        """Drop all buffers, once no call is carried out here any more."""
        self._pool = StagingPool(self._in_flight, self._allocate)
        self._units.forget()
        self._plane.forget()
