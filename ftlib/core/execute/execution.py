"""One attempt at a unit's function in one session, and the executor of units: keep the state, run, await, or undo.

A failure of communication is one that shows at the group: in a call of the library, or in an operation on ``ft.group`` (see
``guarded_group``). It is noted and reported, and the group aborted, at once, even if the program catches it. An exception of
the program also counts as one if the session is over, as nothing could be committed in that session anyway. For connection
errors, and for RuntimeError, which torch raises for them, the executor waits ``DOUBT`` seconds for the session to end. Any
other exception is the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from consensus import CarefulLogger

from ...errors import ConfigError, Excluded, FTLibError, GroupError, StepMismatch
from ...state.registry import Registered
from ...state.snapshot import Backup
from ...status import Status
from ..calls.attempt import SETTLE, WAIT_SLICE, Disagreement, Waits
from ..calls.call import Call, CallOutcome, Results
from ..calls.session import Session
from ..plane.failures import Failures
from ..plane.nonfinite_check import NonfiniteCheck
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..tensors.layout import Layout
from ..tensors.layout_book import LayoutBook
from ..tensors.staging import Allocate
from .guarded_group import GuardedGroup
from .inner import Buffers, Inner, PendingCall
from .unit import Unit, UnitStage

logger = CarefulLogger("ftlib")

DOUBT = 1.0
"""Seconds within which a member's death shows after its connection to the program broke."""


@dataclass(frozen=True, slots=True)
class Means:
    """The parts of the engine that carry out units."""

    plane: Plane
    failures: Failures
    waits: Waits
    veto: NonfiniteCheck
    book: LayoutBook
    registered: Callable[[], Registered | None]
    """Returns the registered state, if any."""
    allocate: Allocate
    """Returns memory for operations (see ``Framework``)."""


class Execution:
    """The calls made within the function. The methods raise GroupError once communication has failed."""

    def __init__(self, unit: Unit, session: Session, means: Means, buffers: Buffers) -> None:
        self.unit = unit
        self.session = session
        self._plane = means.plane
        self._means = means
        self._buffers = buffers
        self.failure: GroupError | None = None
        """Why this attempt failed; None while it has not."""
        self.layouts: list[Layout] = []
        """The layouts of the calls that were begun."""
        self._pending: list[PendingCall] = []
        self._samples: float | None = None
        """The weight in samples of the last average."""
        self._accelerated = session.accelerated
        """True if accelerators carry the calls: alike at all members, as all have finished the same calls of this session."""
        self._begun: list[Inner] = []
        """The calls that may have operations under way."""
        group = session.program_group
        self.group = None if group is None else GuardedGroup(group, self.failed, self._waiting)

    @property
    def expected(self) -> Layout | None:
        """The layout with which all members expect the next call to begin: see ``inner``."""
        place, session = len(self.layouts), self.session
        if place == 0:
            return session.expected
        return session.script[place] if place < len(session.script) else None

    def start(self, call: Call) -> PendingCall:
        """Begin ``call``."""
        self._go_on()
        session = self.session
        call.enter(self.unit.number, self._plane.threads.now())
        call.address(session)
        plane = self._plane
        self._samples = plane.data.weigh(call, self.unit.batches, self._samples)
        self.unit.used(call.batches)
        if plane.has_state and plane.current_state_id and plane.state_id != plane.current_state_id:
            call.reloaded()  # this worker leaves without having got the state: its input counts nothing
        inner = None
        if session.group is not None:
            inner = Inner(call, session, self._buffers.take(call.layout), self._means.waits)
            self._begun.append(inner)
            self._means.book.note(call.layout)
            try:
                with self._waiting():
                    inner.begin(self.expected, accelerated=self._accelerated)
            except GroupError as error:
                raise self.failed(error) from None
            self.layouts.append(call.layout)
        pending = PendingCall(self.end, call, inner)
        self._pending.append(pending)
        return pending

    def end(self, pending: PendingCall) -> Status:
        """Wait for ``pending``, and deliver its result."""
        self._go_on()
        call, inner = pending.call, pending.inner
        if pending not in self._pending:
            raise ConfigError(f"{call} belongs to an execute that is over: wait for it within the function that began it")
        call.restart(self._plane.threads.now())
        if inner is None:
            intact = not (call.veto and call.spoilt())
            results = Results(call.number, call.layout, (), call.weight, intact)
        else:
            try:
                with self._waiting():
                    results = inner.end()
            except GroupError as error:
                raise self.failed(error) from None
        self._pending.remove(pending)
        call.check_untouched()
        status = self._delivered(call, results)
        if inner is not None:
            self._begun.remove(inner)
            inner.free(self._buffers)
        return status

    def finish(self) -> None:
        """Wait for all calls and operations that the function began and did not wait for."""
        self._go_on()
        while self._pending:
            self._pending[0].wait()
        if self.group is None:
            return
        now = self._plane.threads.now
        self.unit.restart(now())
        while self.group.works:
            began, work = now(), self.group.works[0]
            while not work.wait(WAIT_SLICE):
                self._means.waits.waited(self.unit, self.session, now() - began)
        self._go_on()

    def failed(self, error: GroupError) -> GroupError:
        """Note a failure, and report it if it is the first; returns the error to raise."""
        if self.failure is None:
            self.failure = error
            self._means.failures.report(self.unit, self.session, error)
        return self.failure.afresh()

    def settle(self) -> None:
        """After an abort: make sure that nothing writes into the buffers any more, or give them up."""
        threads = self._plane.threads
        deadline = threads.now() + SETTLE
        for inner in self._begun:
            inner.settle(max(0.0, deadline - threads.now()))
            inner.free(self._buffers)
        self._begun.clear()
        self._pending.clear()
        for work in () if self.group is None else self.group.works:
            with suppress(GroupError):
                while not work.done() and (left := deadline - threads.now()) > 0:
                    work.wait(left)

    def _go_on(self) -> None:
        if self.failure is not None:
            raise self.failure.afresh()

    def _delivered(self, call: Call, results: Results) -> Status:
        void = call.void(results)
        if not void:
            call.deliver(results)
        elif results.outcome is CallOutcome.NOT_FINITE:
            self._means.veto.explain(call, self.session)
        self.unit.made(call, results, applied=not void)
        if void:
            return Status.FAIL
        return Status.SUCCESS if self.session.size > 1 else Status.NO_NEED

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """Show the others that this member waits for them."""
        self._plane.computes(self.unit, False)
        try:
            yield
        finally:
            self._plane.computes(self.unit, True)


class Executor:
    """Carries out the units of one lifetime up to their commits. Owned by the training thread."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._plane = means.plane
        self._failures = means.failures
        self._backup = Backup()
        self._buffers = Buffers(self._means.allocate)
        self._committing = ""
        """The id of the view in which a unit's commit was begun last."""
        self._warned = False
        """True once the log has warned that no state is registered."""

    def forget(self) -> None:
        """Free all memory."""
        self._backup.forget()
        self._buffers = Buffers(self._means.allocate)

    def perform(self, unit: Unit, session: Session) -> bool:
        """Run the function. True if it came to its end, so that the unit can be committed in ``session``.

        False if communication failed, or the session was over; the state is then as on entry. The program's exceptions pass
        through, after they were reported to the others.
        """
        plane = self._plane
        plane.data.unfinished()  # ends an earlier attempt
        self._undo(unit, "nobody finished it")
        self._keep(unit, session)
        if not plane.begin(session):
            return False
        execution = Execution(unit, session, self._means, self._buffers)
        unit.begin(execution)
        try:
            self._run(unit, execution)
        except BaseException:  # also what comes while a failure is waited for
            self._give_up(unit, execution)
            raise
        finally:
            plane.computes(unit, False)
            unit.restart(plane.threads.now())  # deadlines of waits count from here on
        if execution.failure is None:
            unit.performed(execution.layouts)
            self._committing = session.view.view_id
            session.expect(execution.expected)
            return True
        self._failed_attempt(unit, execution, execution.failure)
        return False

    def leave(self, unit: Call) -> None:
        """An exception ends ``unit``. If it is a unit in doubt, this member will not learn whether it was committed: stop."""
        if isinstance(unit, Unit) and unit.in_doubt and self._plane.finished < unit.number:
            if not self._uncommitted(unit):
                self._failures.stop(Excluded(f"{unit} was left while it was being committed: {_ANEW}"))
            self._undo(unit, "it was left")

    def _uncommitted(self, unit: Unit) -> bool:
        """True if a later view has come, none of whose members has committed ``unit``: all of them undo it."""
        plane = self._plane
        with plane.changed:
            session = plane.session
            later = plane.phase is Phase.ACTIVE and session is not None and session.view.view_id != self._committing
            return later and session is not None and not session.gives(unit.number)

    # --- inside --------------------------------------------------------------------------------------------------------

    def _run(self, unit: Unit, execution: Execution) -> None:
        """Run the function, and wait for all that it began. A failure of communication is noted; the program's exceptions pass
        through.
        """
        plane = self._plane
        try:
            plane.computes(unit, True)
            try:
                unit.run()
            finally:
                plane.computes(unit, False)
            execution.finish()
        except Exception as error:
            if not self._failure_of_communication(execution, error):
                raise
            execution.failed(GroupError(f"{type(error).__name__}: {error}"))

    def _keep(self, unit: Unit, session: Session) -> None:
        registered = self._means.registered()
        if session.group is None:  # no other member can be lost: copy nothing
            if registered is None and not self._warned:
                self._warned = True
                text = "execute: no state is registered, so this is refused once another worker has joined: call register_state"
                logger.warning(text, extra=self._plane.about("nothing_registered"))
            return
        if registered is None:
            raise ConfigError(
                f"execute: {session.view} has {session.size} members, and no state is registered here to return to where one "
                "is lost: call register_state(model=..., optimizer=...) first"
            )
        if unit.kept is None:
            kept = self._backup.keep(registered, self._plane.step)
            with self._plane.changed:
                unit.keep(kept)
                self._plane.changed.notify_all()

    def _undo(self, unit: Unit, why: str) -> None:
        """Restore the state on entry, if the unit may have changed it."""
        stage = unit.left()
        if stage is UnitStage.READY:
            return
        if unit.kept is None:
            if stage is UnitStage.PERFORMED:  # alone, so nothing was kept; and the function must not run twice
                error = Excluded(f"{unit} could not be committed, and what it did alone cannot be undone: {_ANEW}")
                self._failures.stop(error)
                raise error
            return
        try:
            unit.kept.restore()
        except BaseException as error:
            self._failures.stop(
                Excluded(f"the state on entry to {unit} could not be restored ({type(error).__name__}): {_ANEW}")
            )
            raise
        self._plane.counters.rolled_back += 1
        extra = self._plane.about("rolled_back", call=unit.number)
        logger.info("%s is undone, the state is that of the last commit: %s", unit, why, extra=extra)

    def _failed_attempt(self, unit: Unit, execution: Execution, failure: GroupError) -> None:
        plane = self._plane
        try:
            execution.settle()
        finally:  # an interrupt may end that wait
            self._undo(unit, str(failure))
        plane.counters.redone += 1
        if isinstance(failure, Disagreement) and plane.member_id in failure.blamed:
            raise StepMismatch(str(failure)) from None

    def _give_up(self, unit: Unit, execution: Execution) -> None:
        """An exception ends the function: make sure that no member waits for this one, and restore the last commit's state."""
        try:
            self._failures.abandon()
            execution.settle()
        finally:  # a second interrupt may end that wait
            self._undo(unit, "an exception left it")

    def _failure_of_communication(self, execution: Execution, error: Exception) -> bool:
        if execution.failure is not None:
            return True
        plane, session = self._plane, execution.session
        if session.group is None or (isinstance(error, FTLibError) and not isinstance(error, GroupError)):
            return False
        if isinstance(error, (GroupError, OSError, RuntimeError)):
            plane.wait_end(session, DOUBT)
        return not plane.acting_in(session)


_ANEW = "start this worker anew, as a joiner"
