"""The state of one member's data plane, and all its transitions. One lock, held for moments; no thread and no I/O here.

Three threads meet here: the training thread (in a call or outside), the rebuild thread (freeze, install, activate; see
``rebuild``) and the agent's (progress only). The central rule: *finish or freeze is one transition*. A call is finished under
the lock, in the session in which its operations ran, while the phase is ACTIVE; after a freeze nothing finishes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

from consensus import View

from ...common.counters import Counters, TimeUse
from ...common.threads import SYSTEM, Threads
from ...common.traces import Traces, ViewRecord
from ...data.mates import Drawing
from ...frameworks.base import Group
from ..calls.call import Call, CallOutcome, Results
from ..calls.salvage import NAMED, Report, SalvagePlan
from ..calls.session import Session
from ..replicas.saves import Saves
from ..tensors.layout import Layout
from ..tensors.staging import Slot
from ..tensors.trailer import Trailer
from .data_accounting import DataAccounting, shares_in
from .lag import Borders, Lag
from .news import News
from .orders import FINISHED, Finish, Order, Reported
from .phase import PLANE, Phase, Switch
from .progress import Peers, Progress
from .step_times import StepTimes

_VIEWS = 64
"""Views whose epochs are remembered: a call that one of them has computed may be finished in a later one."""


class Plane:
    """The state. Methods named after transitions take the lock themselves; attributes are read under ``changed``."""

    def __init__(  # noqa: PLR0915 - a statement an attribute
        self,
        member_id: str,
        tell: Callable[..., None] = lambda *_place, **_more: None,
        threads: Threads = SYSTEM,
        *,
        job: str = "",
        step_times: StepTimes | None = None,
        leaving: Callable[[], bool] = lambda: False,
        rejoins: bool = False,
        patience: float = 600.0,
        former: Plane | None = None,
        traces: Traces | None = None,
        replica: str = "",
    ) -> None:
        """``tell``: gets this member's place (finished, current call) once another may wait for this member; must be quick.

        ``threads``: also used by the other threads that meet here. ``job``: for log records. ``leaving``: returns True if this
        worker has to leave; then nothing that takes long is begun for it. ``rejoins``, ``patience``: see ``DataAccounting``.
        ``former``: the plane of the previous lifetime, whose counts and pending notifications of views are taken over.
        ``traces``: gets records of what happens; None if nobody wants any. ``replica``: the name of this member's replica, if
        that has several processes.
        """
        self.member_id, self.traces = member_id, traces
        self._tell = tell
        self.threads = threads
        self.leaving, self.job = leaving, job
        self.changed = threads.condition()
        self.phase = PLANE.start
        self.error: Exception | None = None
        """Why the phase is STOPPED."""
        self.released = False
        """True once the consensus has ended this lifetime, for whatever reason: it needs no more votes of this member."""
        self.session: Session | None = None
        """The newest activated session (kept while FROZEN)."""
        self.finished, self.finished_in, self.finished_epoch = 0, "", 0
        """The newest finished call, the view in which it was computed (empty if this member did not see that view), and that
        view's epoch; the epoch in which the call was finished here, if this member was not in that view."""
        self._epochs: dict[str, int] = {}
        """Of the newest views that were active here, by their ids."""
        self.step: int = 0 if former is None else former.step  # shown before admission only; then it becomes the job's
        self.current: Call | None = None
        self.running: Session | None = None
        """The session in which the training thread has operations under way."""
        self.results: Results | None = None
        self.held: Results | None = None  # of the call in progress, where mates in this replica may not have theirs yet
        self.held_foreign = False
        """True if that was a call of the others, in which this newcomer took part with nothing of its own."""
        self.drawing: Drawing | None = None
        """What this replica's processes have agreed on about the samples of the newest finished call. One of them may still
        hold its result, and goes by this in the next view."""
        self.founder, self.boundary_requested, self.blank = False, False, True
        self.outcome, self.preface = CallOutcome.INTACT, False  # of the newest finished call, see ``Results``
        self.void, self.newcomer = False, False  # void: the newest finished call had no result
        """``newcomer``: True from this member's admission or healing until its program finishes a call that the others make,
        too. Until then the program may be at another place than the others' programs."""
        self.state_id, self.current_state_id = "", ""
        """The id of the valid state in the active session: the plan's, until founders load a checkpoint in the session."""
        self.has_state: bool = former is not None and former.has_state
        self.state_places: tuple[str, ...] = () if former is None else former.state_places  # the devices of that state
        self.training_thread = threading.get_ident()
        """The thread that last entered a call, a backup worker's excepted."""
        self.counters: Counters = Counters(TimeUse(threads.now())) if former is None else former.counters
        self.peers = Peers()
        self.recovery: Callable[[], Progress] | None = None
        """Progress of this member's recovery; None if there is none. Must not be called under the lock."""
        self.saves: Saves = Saves() if former is None else former.saves  # whether checkpoints are being written
        self.lag, self.borders = Lag(), Borders()
        """How far the program is behind its backup worker; and the newest border between calls that it has come to."""
        self.trailer: Trailer | None = None
        """The trailer of the last call that was finished in the active session."""
        self.step_times = StepTimes() if step_times is None else step_times
        """The members' times outside of calls."""
        self.data: DataAccounting = DataAccounting(
            self, None if former is None else former.data, rejoins=rejoins, patience=patience, replica=replica
        )
        """Accounting of the data that calls use up."""
        self.news: News = News() if former is None else former.news
        """Pending notifications of the program."""
        self._told = (0, 0, False, 0)
        """This member's place as last sent to the others: finished calls, the current call, and whether it is busy with it."""
        self._too_few = -math.inf
        """When fewer members than calls need were there last, while one waited for more."""
        self._order: Order | None = None
        self._reported: Reported | None = None
        # Undecided: from the end of a call that may give this newcomer the state until it is known whether it has. No report
        # is made meanwhile, as it would say that it has none.
        # Broken: a call has failed in ``session``, or was left by an exception there: its group is aborted, or is about to be.
        self._last_signature, self._frozen_at, self._parting, self._undecided, self._broken = b"", 0.0, False, False, False

    def __repr__(self) -> str:
        now = f"in {self.current}" if self.current else "outside of calls"
        return f"<Plane {self.phase.value}, {self.finished} calls finished, {now}, {self.session}>"

    @property
    def level(self) -> bool:
        """True if this member has the state that is valid in the active session."""
        return self.state_id == self.current_state_id and bool(self.current_state_id)

    @property
    def ordered(self) -> bool:
        """True while a freeze waits for the end of the call in progress, or until it is known what that call has given."""
        return self._order is not None

    @property
    def needed(self) -> Sequence[Slot]:
        """The slots of the newest results, while a survivor may need them."""
        results = self.held or self.results
        return () if results is None else results.slots

    def about(self, event: str, **more: Any) -> dict[str, Any]:
        """``extra=`` of a log record: the event in one word, this worker's place, and ``more``."""
        session = self.session
        return {
            "ftlib_event": event,
            "job": self.job,
            "member": self.member_id,
            "epoch": 0 if session is None else session.view.epoch,
            "rank": -1 if session is None else session.rank,
            "size": 0 if session is None else session.size,
            "step": self.step,
            **more,
        }

    # --- the training thread -------------------------------------------------------------------------------------------

    def enter(self, call: Call) -> None:
        """The training thread enters ``call``, which gets its number. ``tell`` notifies the others once it waits for them."""
        with self.changed:
            assert self.current is None, "calls are serialized"
            call.enter(self.finished + 1, self.threads.now())
            self.current = call
            if self.data.sampler is not None:
                self.data.entered(call)
            if not call.by_backup:
                self.training_thread = threading.get_ident()
                if self.state_places:
                    call.fenced(self.state_places)
            self.changed.notify_all()

    def ready(self, min_size: int) -> Session | None:
        """The active session, if it has at least ``min_size`` members; None if the caller has to wait for one."""
        session = self.session
        return session if self.phase is Phase.ACTIVE and session is not None and session.size >= min_size else None

    def lacks(self) -> None:
        """Fewer members are there than the call in progress needs: it waits for more. Under the lock."""
        self._too_few = self.threads.now()

    def since(self, began: float) -> float:
        """From when the deadlines of what ``began`` then count: as long as too few members are there, no other wait can end."""
        return max(began, self._too_few)

    def tell(self) -> None:
        """Send this member's place to the others, if it has changed: others may wait for it, or it for them. Under the lock."""
        current, present = self.current, self.current is None or self.current.present
        number = current.number if current is not None and present and not current.computing else 0
        busy = self.running is not None and present
        place = self.finished, number, busy, self.borders.inner
        if place != self._told:
            self._told = place
            self._tell(self.finished, number, busy=busy, inner=self.borders.inner)

    def stepped(self, inner: int) -> None:
        """The program has done a step by itself, its ``inner``-th: it does not hang, however long the others wait."""
        with self.changed:
            self.borders.stepped(inner)
            self.tell()

    def turn_to(self, call: Call) -> None:
        """The training thread goes on inside ``call`` instead of, or after, its current call, which has nothing under way."""
        with self.changed:
            assert self.running is None, "calls are serialized"
            self.current = None
            self.enter(call)

    def computes(self, call: Call, computing: bool) -> None:
        """``computing``: True while the program's code runs inside ``call``; peers blocked in it then wait for this member."""
        with self.changed:
            call.compute(computing)
            use = self.counters.time_use
            turn = use.computes if computing else use.computed
            turn(self.threads.now())
            self.tell()

    def computed(self, call: Call) -> None:
        """Backward has ended: the program is inside its open ``call`` now. As on entry, nobody is told before it waits."""
        with self.changed:
            call.compute(False)
            if self.state_places:  # backward may have enqueued changes of buffers since the entry
                call.fenced(self.state_places)
            self.changed.notify_all()

    def caught_up(self, state_id: str, number: int) -> bool:
        """This member has the state on entry to call ``number``, which has just finished; it descends from ``state_id``."""
        with self.changed:
            if self.phase is Phase.STOPPED or self.finished != number or self.current_state_id != state_id:
                return False
            self.state_id, self.newcomer = state_id, False
            self.data.caught_up()
            self._has_loaded()
            return True

    def decided(self) -> Order | None:
        """It is known by now whether this newcomer has the state. Returns a freeze that has waited for that. Idempotent."""
        with self.changed:
            if not self._undecided:
                return None
            self._undecided = False
            order, self._order = self._order, None
            return order

    def abandon(self) -> tuple[Session | None, Order | None]:
        """The training thread leaves its call by an exception. Returns the session to abort if others may wait in it."""
        with self.changed:
            session, self.running, self.current = self.running, None, None
            self.data.unfinished()
            self.tell()
            order, self._order = self._order, None
            # Who is alone in its group may have said to its replica that it holds the result, so that they finish the call.
            if session is not None and (session.group is not None or self.held is not None) and self._acting_in(session):
                self._broken = True
                self._freeze()
                return session, order
            return None, order

    def begin(self, session: Session) -> bool:
        """Operations are about to start in ``session``; False if that session is over."""
        with self.changed:
            if self.phase is not Phase.ACTIVE or self.session is not session:
                return False
            self.running = session
            if self.boundary_requested:
                self.tell()
            return True

    def entered(self) -> None:
        """An operation of the current call has finished, so no member needs the previous call's results."""
        with self.changed:
            self.results = None
            if self.current is not None and not self.current.present:  # most often it was already: one function less
                self.present()

    def present(self) -> None:
        """Allow the others to know that this member is in its call."""
        with self.changed:
            if self.current is not None and not self.current.present:
                self.current.show()
                self.tell()

    def hold(self, session: Session, results: Results, trailer: Trailer | None = None) -> bool:
        """Hold the result of the call in progress until all of this replica have theirs; False if there was a freeze meanwhile.

        A flush report says so from now on. ``trailer``: None if the result is a donor's, or was held before.
        """
        with self.changed:
            if not self._acting_in(session):
                self.running = None
                self.tell()
                return False
            if trailer is not None and trailer.draws:
                results.share(shares_in(session.drawers, trailer))
            self.held, self.held_foreign = results, self.current is not None and self.current.foreign
            return True

    def finish(self, session: Session, call: Call, trailer: Trailer, results: Results) -> Finish | None:
        """Finish ``call``, unless there was a freeze meanwhile (None: redo the call in the next session).

        A member that parts in the middle of a call does not know whether the others end that call, too, or do it again without
        it. So it waits for the order, which says so; at most as long as the goodbye takes.
        """
        with self.changed:
            if self._parting and not trailer.freeze:
                self.changed.wait_for(lambda: self._order is not None or not self._acting_in(session))
            self.running = None
            if self.phase is not Phase.ACTIVE or self.session is not session:
                self.tell()
                return None
            order, self._order = self._order, None
            if trailer.draws and self.held is None:
                results.share(shares_in(session.drawers, trailer))
            self._finished(call, results)
            self.trailer = trailer
            if self.news.changes:
                self.news.finished()
            if trailer.freeze or order is not None:
                self._freeze()
            if self._undecided:
                self._order, order = order, None
            return FINISHED if order is None else Finish(order)

    def adopt(self, session: Session, call: Call, results: Results) -> Finish | None:
        """Finish ``call`` with a donor's results, or with those held before; None if there was a freeze meanwhile."""
        with self.changed:
            self.running = None
            if not self._acting_in(session):
                self.tell()
                return None
            order, self._order = self._order, None
            self._finished(call, results)
            self.news.adopted()
            self.counters.adopted += 1
            if order is not None:
                self._freeze()
            if self._undecided:
                self._order, order = order, None
            return FINISHED if order is None else Finish(order)

    def failed(self, session: Session, *, begun: bool = True) -> tuple[bool, Order | None]:
        """An operation failed in ``session``. True if nothing had frozen this member before; and a freeze that had waited.

        ``begun``: False if nothing failed but no member was in the call: then the plane freezes only if a freeze has waited for
        the call's end.
        """
        with self.changed:
            self.running = None
            self.tell()
            order, self._order = self._order, None
            self._broken = self._broken or (begun and self.session is session)
            first = self.phase is Phase.ACTIVE and self.session is session
            if first and (begun or order is not None):
                self._freeze()
            return first, order

    def loaded(self, session: Session, state_id: str) -> bool:
        """Registered state was loaded that descends from ``state_id``; False, without effect, if the session has ended."""
        with self.changed:
            if not self._acting_in(session):
                return False
            self.state_id = state_id
            if self.current is not None and self.state_places:  # who asks for the state from now on gets what was loaded
                self.current.fenced(self.state_places)
            self.data.loaded()
            self._has_loaded()
            return True

    def unload(self) -> None:
        """What was loaded at a border is not to be used: the other processes of this replica do not begin there."""
        with self.changed:
            self.state_id = ""

    def resumed(self, session: Session, state_id: str, step: int) -> bool:
        """A founder loaded a checkpoint of ``step``, as all of ``session`` do; their common state is named ``state_id``.

        False if the session ended meanwhile: then the others may not have this member's state.
        """
        with self.changed:
            acting = self._acting_in(session)
            self.step = step
            self.state_id = state_id if acting else ""
            if acting:
                self.current_state_id = state_id
                self.data.resumed(session)
                self._has_loaded()
            return acting

    def not_resumed(self, session: Session, state_id: str, step: int) -> None:
        """The others of ``session`` have loaded a checkpoint of ``step``, see ``resumed``, and this member cannot.

        So it lacks their state: if its program goes on all the same, its next call loads that.
        """
        with self.changed:
            if self._acting_in(session):
                self.step = step
                self.current_state_id = state_id
                self.data.lost()

    def acting_in(self, session: Session) -> bool:
        """True if ``session`` is the active session."""
        with self.changed:
            return self._acting_in(session)

    def newest_is(self, session: Session) -> bool:
        """True if ``session`` is the last activated one, frozen or not."""
        with self.changed:
            return self.session is session and self.phase is not Phase.STOPPED

    def wait_end(self, session: Session, timeout: float) -> None:
        """Wait at most ``timeout`` seconds until ``session`` is no longer active."""
        with self.changed:
            self.changed.wait_for(lambda: not self._acting_in(session), timeout)

    def in_call(self, number: int) -> bool:
        """True if the training thread is inside call ``number``: unless the call changes the state, it is as on entry.

        False while an open call computes: backward may change buffers.
        """
        with self.changed:
            current = self.current
            if current is None or current.number != number or current.by_backup:
                return False
            return current.changes_state or not current.computing

    def at_border(self) -> None:
        """The program has come to a border (see ``Borders``). On the training thread, outside of calls or in an open one."""
        with self.changed:
            if self.borders.before <= self.finished and not self.lag.calls:  # a late program is not where the calls are
                self.borders.come(self.finished + 1, self.step)
                self.changed.notify_all()

    def blocking(self) -> str:
        """In words, the members that this one waits for, as far as the others' pings show. Any thread."""
        with self.changed:
            session, peers, current = self.session, dict(self.peers.places), self.current
        if session is None:
            return "no view is active at this worker"
        number = current.number if current is not None else 0
        absent = [m for m in session.view.ids if m != self.member_id and max(peers.get(m, (0, 0))) < number]
        if not absent:
            return f"the members of {session.view} have all entered the call"
        return f"waiting for {session.names(absent)}, not in this call yet"

    def settled(self, number: int) -> bool:
        """True if shared state that only calls change is as on entry to call ``number``: in that call, and before it."""
        with self.changed:
            units = self.current is not None and self.current.changes_state
            return (
                self.phase is not Phase.STOPPED and not units and self.finished == number - 1 and self.borders.before == number
            )

    # --- the rebuild thread --------------------------------------------------------------------------------------------

    def freeze(self, order: Order) -> tuple[bytes, Session | None] | None:
        """Freeze as ordered. Returns the flush report, and the session whose group must be aborted before it is sent.

        None if the order is stale, or if it waits: for the end of the call in progress, or until it is known whether a newcomer
        has got the state with that call. A stopped plane answers, too, without waiting: others may need this member's vote to
        go on without it.
        """
        with self.changed:
            if self.released:
                return None
            reported = self._reported
            if reported is not None and order.epoch <= reported.epoch:
                return (reported.data, None) if order.epoch == reported.epoch else None
            if self.session is not None and order.epoch <= self.session.view.epoch:
                return None
            if order.epoch == 2 and self.session is None:  # a member of the first view, whose install got lost
                self._found()
            if self.phase is Phase.ACTIVE and self._ends_with(order.after_call):
                self._order = order
                self.changed.notify_all()
                return None
            if self._undecided and self.phase is not Phase.STOPPED:
                self._order = order
                self._freeze()
                return None
            self._order = None
            # Whoever has seen a failure runs no more, but what failed goes on until the group is aborted: wait for that, too.
            aborts = order.after_call is None or self.running is not None or self._broken
            abort = self.session if aborts else None
            self._freeze()
            current = self.current
            entered = current.layout if current and current.certain and not self.newcomer else None
            # With tensors on devices a session's first call waits for accelerators that start, unlike one that is expected.
            opening = None if entered is None or entered.places else entered
            self._reported = Reported(order.epoch, self._report(entered).encode(), opening)
            return self._reported.data, abort

    def installing(self, view: View) -> bool:
        """True if a group is to be built for ``view``; the phase is not ACTIVE any more then."""
        with self.changed:
            if self.phase is Phase.STOPPED or (self.session is not None and view.epoch <= self.session.view.epoch):
                return False
            if self._reported is not None and self._reported.epoch > view.epoch:
                return False
            if not view.parent_id:
                self._found()
                self.data.founded(view)
            if self.phase is Phase.ACTIVE:
                self._freeze()
            return True

    def expected_in(self, plan: SalvagePlan) -> Layout | None:
        """The layout with which all members of a session with this plan expect its first call to begin; None: they expect none.

        What was reported last is what the plan is made of, or else the session is stale.
        """
        with self.changed:
            opening = None if self._reported is None else self._reported.opening
            return opening if opening is not None and opening.signature == plan.entered else None

    def activate(self, session: Session) -> bool:
        """Make ``session`` the active one; False if it is stale."""
        plan = session.plan
        with self.changed:
            if self.phase is Phase.STOPPED or self.phase is Phase.ACTIVE:
                return False
            if self._reported is not None and self._reported.epoch > session.view.epoch:
                return False
            if self.member_id in plan.healed:
                self.founder, self.blank, self.results, self.held = False, True, None, None
                self.lag = Lag()
                self._last_signature = b""
            if self.held is not None and not session.keeps:
                self.held = None  # done again
            if plan.donor_of(self.member_id) is None and not session.keeps:
                if self.blank and self.finished != plan.call:
                    self.state_id = ""  # behind, or the loaded state belongs to a call that no remaining member finished
                self.finished_in = self.finished_in if self.finished == plan.call else ""
                self.finished, self.step = plan.call, plan.step
                if self.current is not None:
                    self.current.renumber(self.finished + 1)
                self.tell()
            self.newcomer = self.newcomer or self.member_id in plan.blank
            self.current_state_id = plan.current_state_id
            if plan.current_state_id == self.member_id and self.member_id in plan.holders:
                self.state_id = self.member_id
            self.session, self.trailer, self._broken = session, None, False
            self._remember(session.view)
            self.data.activated(session)
            self.phase = PLANE.after(self.phase, Switch.ACTIVATE)
            self.data.start()
            self.counters.views += 1
            if self._frozen_at:
                now = self.threads.now()
                self.counters.pauses.add(now - self._frozen_at)
                if self.current is not None and not self.current.by_backup:
                    self.counters.time_use.changed(now - max(self._frozen_at, self.current.began))
            if self.traces is not None:
                whole = session.whole
                seen = (whole.view_id, whole.epoch, session.rank, session.size, self._frozen_at, self.threads.now())
                self.traces.add(ViewRecord(*seen))
            self.counters.last_wait = self.threads.now() - self.current.began if self.current is not None else 0.0
            self.peers.keep(session.view)
            self.news.activated(session.view, adopts=session.donor is not None or session.keeps)
            self.changed.notify_all()
            return True

    def let_end(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the end of a call that a freeze waits for: all who leave may end it, too."""
        with self.changed:
            self.changed.wait_for(lambda: self._order is None or self.phase is Phase.STOPPED, timeout)

    def stop(self, error: Exception) -> Group | None:
        """End this lifetime; returns the group to abort. The first reason to stop is kept."""
        with self.changed:
            if self.phase is Phase.STOPPED:
                return None
            self.phase = PLANE.after(self.phase, Switch.STOP)
            self.error = error
            self.data.stopped(error)
            self.changed.notify_all()
            return self.session.group if self.session is not None else None

    def unpark(self) -> Order | None:
        """This member has stopped: nothing has to end any more. Returns the freeze that has waited for that, if any."""
        with self.changed:
            order, self._order = self._order, None
            return order

    def release(self) -> None:
        """The consensus has ended this lifetime."""
        with self.changed:
            self.released = True
            self.changed.notify_all()

    def part(self) -> int | None:
        """This member is about to ask the others to go on without it. Returns the last call that it has ended, if any: a later
        one ends here only if it ends everywhere.
        """
        with self.changed:
            self._parting = True
            return self.finished if self.finished_in else None

    # --- what is registered, and asked for -----------------------------------------------------------------------------

    def registers(self, places: tuple[str, ...] = ()) -> None:
        """The program registered state, some of it on the devices at ``places``."""
        with self.changed:
            self.has_state, self.state_places = True, places

    def request_boundary(self, wanted: bool) -> None:
        """``wanted``: True while a joiner waits for admission, so that all members freeze after a call."""
        with self.changed:
            self.boundary_requested = wanted
            if wanted:
                self.tell()  # the joiner waits for the end of operations under way

    def recovers(self, progress: Callable[[], Progress] | None) -> None:
        """``progress``: that of the recovery that runs beside the others' training; None if there is none."""
        self.recovery = progress

    def forget(self) -> None:
        """Drop the last results: no call is carried out here any more."""
        self.results = self.held = None

    # --- the agent's thread --------------------------------------------------------------------------------------------

    def peer_progress(self, member_id: str, finished: int, current: int, inner: int = 0) -> None:
        """Note another member's place, and how many steps it has done by itself."""
        with self.changed:
            self.peers.note(member_id, (finished, current), self.threads.now(), inner)

    # --- within the lock -----------------------------------------------------------------------------------------------

    def _acting_in(self, session: Session) -> bool:
        return self.phase is Phase.ACTIVE and self.session is session

    def _ends_with(self, call: int | None) -> bool:
        """True if operations of ``call`` or an earlier one run, or a change of state that a lone member cannot undo."""
        current = None if self.running is None else self.current
        alone = self.session is not None and self.session.group is None
        return current is not None and ((alone and current.changes_state) or (call is not None and current.number <= call))

    def _freeze(self) -> None:
        if self.phase is Phase.ACTIVE:
            self.phase = PLANE.after(self.phase, Switch.FREEZE)
            self._frozen_at = self.threads.now()
        self.changed.notify_all()

    def _has_loaded(self) -> None:
        self.counters.state_loads += 1
        if self.current is not None:
            self.counters.time_use.recovered()

    def _found(self) -> None:
        self.founder, self.blank = True, False

    def _remember(self, view: View) -> None:
        self._epochs[view.view_id] = view.epoch
        if len(self._epochs) > _VIEWS:
            del self._epochs[next(iter(self._epochs))]

    def _finished(self, call: Call, results: Results) -> None:
        self.finished, self.finished_in = call.number, results.view_id
        now = 0 if self.session is None else self.session.view.epoch
        self.finished_epoch = self._epochs.get(results.view_id, now)  # a result that was held may be of an earlier view
        self.current = None
        self._undecided = call.may_give_state
        self.tell()
        self.blank = False
        self.results, self.held, self.drawing = results, None, results.drawing
        self._last_signature = results.signature
        counters = self.counters
        counters.calls += 1
        counters.accelerated += results.accelerated
        counters.alone += not results.slots
        counters.bytes_averaged += call.nbytes
        self.void, self.outcome, self.preface = call.void(results), results.outcome, results.preface
        granted = int(call.counts_as_step and not self.void)
        self.step += granted
        if call.by_backup:
            self.lag.grow(granted)
        # If no member draws samples there is nothing to note, except at a newcomer, which still has to come in.
        accounts = self.data.sampler is not None or results.shares or self.newcomer
        came_in = self.data.finished(call, results) if accounts else True
        if self.newcomer:
            self.newcomer = call.foreign or not came_in
            if self.newcomer:
                self.state_id = ""  # the loaded state was the one on entry to that call

    def _report(self, entered: Layout | None) -> Report:
        """``entered``: the layout of the call in progress, if it is known and the others', too."""
        calls = (self.finished, self.current.number if self.current else 0, self.step)
        is_founder, late, drawn = self.founder, self.lag.calls > 0, self.data.report()
        signatures = (self._last_signature, b"" if entered is None else entered.signature)
        state = (is_founder, self.blank, self.has_state, late)
        spoilt = self.results is not None and self.results.changed
        found = ((), "") if self.session is None else (self.session.blamed[:NAMED], self.session.dispute)
        held = (0, b"") if self.held is None else (self.held.number, self.held.signature)
        return Report(*calls, *signatures, self.state_id, *state, drawn, self.newcomer, spoilt, *found, *held)
