"""A backup worker takes part in the others' calls while its worker's program is late: they need not wait for the program.

The term comes from Chen et al., Revisiting Distributed Synchronous SGD (2016), where no step waits for the slowest workers.
Here the backup worker is a thread of the slow worker's own process, and its part in each average is zeros with weight 0.

It exists if ``straggler_deadline`` is set. When the program has been outside of calls for that long, and is about to begin a
step (see ``pattern``), a thread of this process follows the others' calls as a joiner does, one after another, with neutral
data and weight 0. It keeps the results (``backlog``) and applies none, as the program may be in the middle of a forward pass.
When the program arrives, the call under way ends first, and then the program takes over what it missed.

A late member will have the state, but not yet. A donor is asked only while its program is inside a call (``Plane.in_call``),
and the flush report says ``late``, so that no member asks it while others have the state. For a holder that a member may have
to ask, no backup worker acts at all (``_needed``). All programs may be late at once: a call that no program has entered does
not begin (``NobodyThere``).

A hanging program is not covered for ever: after ``stall_timeout`` the backup worker stops, and the others' waiting becomes
evidence, as without a backup worker.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from consensus import CarefulLogger, LeftError, View

from ...errors import Excluded
from ...state.registry import Registered
from ...state.replay import why_not as why_not_replayed
from ...status import Status
from ..calls.call import Call, Kind, Results
from ..calls.follow import Declined
from ..calls.learner import NoFollowing
from ..calls.open_call import OpenCall
from ..calls.session import Session
from ..engine.call_lock import CallLock
from ..engine.engine import Engine
from ..engine.waiting import ended
from ..plane.hang import stack
from ..plane.phase import Phase
from ..plane.plane import Plane
from ..tensors.staging import Slot
from .backlog import Backlog
from .backup_call import BackupCall
from .own_average import NotHere, OwnAverage
from .pattern import CallPattern, owners_of
from .pattern import why_not as why_no_step

logger = CarefulLogger("ftlib")

_BACK = "back: the others did %d calls without this worker, which has taken them over; %d are left to its next calls"
_LOOK = 0.05
"""Seconds between two checks for changes without a notification."""
_QUIET = 60.0
"""Seconds in which the log warns only once of the same thing."""
_PAUSE, _LONGEST_PAUSE = 0.001, 0.016
"""Seconds between two attempts to find a program in the call, where only backup workers are: doubled each time; the maximum."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings of a backup worker."""

    deadline: float
    """Seconds since the end of the program's last call after which the backup worker acts."""
    stall_timeout: float
    """Seconds since the end of the program's last call after which the backup worker stops."""
    min_size: int
    """Number of members below which calls wait."""
    pending: int
    """Bytes of results that the backup worker may keep."""
    veto: bool
    """True if nobody applies an average with inf or nan."""


class BackupWorker:
    """The backup worker of one lifetime: ``start``, then ``end``. Its thread acts only in its turn (``CallLock.lend``)."""

    def __init__(
        self,
        plane: Plane,
        engine: Engine,
        call_lock: CallLock,
        registered: Callable[[], Registered | None],
        terms: Terms,
        tell: Callable[[View], None],
    ) -> None:
        """``registered``: returns what the program has registered so far. ``tell``: runs its callbacks for a view."""
        self._plane = plane
        self._engine = engine
        self._call_lock = call_lock
        self._registered = registered
        self._terms = terms
        self._tell = tell
        self._threads = plane.threads
        self._thread = plane.threads.thread(self._run, "ftlib-deputy")
        self._changed = plane.threads.condition()
        # Guarded by the condition:
        self._over = False
        self._since: float | None = None
        """When the program left its last call; None while it is in a call, and before its first."""
        # Used in turn:
        self._pattern = CallPattern()
        self._own = OwnAverage(registered)
        self._backlog = Backlog(plane, registered, self._own, terms.pending, tell)
        self._retired = ""
        """Why the backup worker does not act before the program's next call; empty if it may act."""
        self._told: set[str] = set()
        """The reasons that the log shows already."""
        self._warned: dict[str, float] = {}
        """When the log last showed each warning."""

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def end(self, timeout: float) -> None:
        """Stop acting. The caller has aborted a call under way. Idempotent."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.ident is not None and self._thread is not self._threads.current():
            self._thread.join(timeout)

    # --- the program, in its turn --------------------------------------------------------------------------------------

    def run(self, call: Call) -> Status:
        """As ``Engine.run``, but first takes over what the others did meanwhile."""
        if self._call_lock.departed:
            return Status.ABORT
        with self._changed:
            self._since = None
        try:
            status = self._taken_over(call)
            if status is None:
                status = self._engine.run(call)
            if isinstance(call, Declined) and call.lacks is not None:
                status = self._made_up(call, call.lacks)
            return status
        finally:
            if 0 < call.number <= self._plane.finished:
                self._pattern.note(call.layout, owners_of(call))
                self._own.note(call)
            self._retired = ""
            with self._changed:
                self._since = self._threads.now()

    def open(self, call: OpenCall) -> bool:
        """As ``Engine.open``. From then on the program is in its call, for which no backup worker stands in."""
        if self._backlog or not self._engine.open(call):
            return False
        with self._changed:
            self._since = None
        return True

    def abandon(self) -> None:
        """As ``Engine.abandon``."""
        self._engine.abandon()
        with self._changed:
            self._since = self._threads.now()

    def _taken_over(self, call: Call) -> Status | None:
        """The status of ``call`` if the others have already finished it, else None. Raises like a call."""
        backlog, plane = self._backlog, self._plane
        if not backlog:
            return None
        with plane.changed:
            useless = plane.phase is Phase.STOPPED or not plane.lag.calls  # excluded, or healed: the state comes from others
        if useless:
            backlog.clear()
            return None
        began = self._threads.now()
        call.restart(began)
        try:
            if self._engine.said_goodbye:
                status = Status.FAIL  # this worker has left, as a notice asked
            else:
                count = len(backlog)
                status = backlog.take_over(call)
                taken, seconds = count - len(backlog), self._threads.now() - began
                extra = plane.about("late_arrival", call=call.number, missed=count, seconds=seconds)
                logger.debug(_BACK, taken, len(backlog), extra=extra)
            plane.data.passed(call)
        except NotHere as reason:
            raise self._out(call, reason) from None
        except BaseException as error:
            self._engine.undelivered(call, error)
            raise
        finally:
            plane.counters.time_use.left(self._threads.now())
        return status

    def _made_up(self, call: Declined, results: Results) -> Status:
        """The others had finished ``call`` with a result, maybe with the backup worker, before this member could decline it:
        apply that here, so that there is nothing that the program would have to do.
        """
        try:
            with self._plane.changed:
                views = tuple(self._plane.news.due)
                self._plane.news.due.clear()
            for view in views:  # before it is applied, as always
                self._tell(view)
            if call.counts_as_step:
                self._own.apply(results)
            elif call.kind is not Kind.BARRIER:
                raise NotHere(f"they have a result that is no average ({results.layout.text})")
        except NotHere as reason:
            raise self._out(call, reason) from None
        except BaseException as error:
            self._engine.undelivered(call, error)
            raise
        return Status.FAIL

    def _out(self, call: Call, reason: NotHere) -> Exception:
        """This worker is out, since the others have what it cannot get."""
        error = Excluded(f"{call}: the others had finished that call, and {reason}: start this worker anew, as a joiner")
        self._engine.fail(error)
        return error if self._plane.error is error else ended(self._plane)

    # --- its thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._over:
                    return
                left = self._left()
                if left > 0:
                    self._changed.wait(left)
                    continue
            if not self._call_lock.lend(self._one):
                with self._changed:
                    if not self._over:
                        self._changed.wait(_LOOK)

    def _left(self) -> float:
        """Seconds until the program is late; while it is in a call, the earliest that it can be."""
        if self._since is None:
            return self._terms.deadline
        return self._since + self._terms.deadline - self._threads.now()

    def _one(self) -> bool:
        """Take part in one call. False if that is not possible, or the program comes."""
        try:
            return self._ready() and self._take_part()
        except NoFollowing as reason:
            self._retire(str(reason))
        except LeftError as reason:  # the program's next call ends in the same way
            self._retired = str(reason)
        except Exception as error:  # noqa: BLE001 - after any error the program goes on, and the others wait for it again
            self._failed(error)
        return False

    def _take_part(self) -> bool:
        call = BackupCall(
            self._threads.now(), veto=self._terms.veto, awaited=lambda: self._call_lock.awaited, present=self._plane.present
        )
        with torch.no_grad():
            sessions = functools.partial(self._sessions, itertools.count())
            return self._engine.run_backup(call, sessions, functools.partial(self._keep, call))

    def _keep(self, call: Call, results: Results) -> Sequence[Slot]:
        """A call is finished: keep it for the program. Returns no buffers in exchange, so the engine makes new ones."""
        backlog, first = self._backlog, not self._backlog
        backlog.keep(results, int(call.counts_as_step and not call.void(results)))
        self._plane.counters.stood_in += 1
        if first:
            text = "this worker is late: the others go on without it from call %d on (straggler_deadline=%g)"
            extra = self._plane.about("late", call=call.number)
            logger.log(self._level("late"), text, call.number, self._terms.deadline, extra=extra)
        if not backlog.open:
            self._retire(f"the others do something else than this worker's last steps ({results.layout.text})")
        return ()

    def _failed(self, error: Exception) -> None:
        plane = self._plane
        if plane.phase is Phase.STOPPED:  # the program's next call says why
            return
        self._retired = f"{type(error).__name__}: {error}"
        logger.error("the others wait for this worker, its deputy failed", exc_info=error, extra=plane.about("deputy_failed"))

    # --- whether it acts -----------------------------------------------------------------------------------------------

    def _ready(self) -> bool:
        """True if the backup worker may take part in the next call, as far as this worker alone can decide."""
        plane, backlog, since = self._plane, self._backlog, self._since
        over = self._call_lock.departed or self._engine.said_goodbye or plane.phase is Phase.STOPPED
        if over or since is None or self._retired or self._engine.owes:
            return False
        if (waited := self._threads.now() - since) > self._terms.stall_timeout:
            self._hangs(waited)
            return False
        if plane.data.closing:
            if backlog:
                self._retire("the data epoch is complete, and all leave their loops together")
            return False
        if not backlog:
            return self._may_begin()
        if backlog.open and backlog.full:
            self._retire("it cannot hold more results (recovery_pending_mb)")
            return False
        return backlog.open and plane.lag.calls > 0  # no lag if it was healed: the program has to get the state

    def _may_begin(self) -> bool:
        plane = self._plane
        with plane.changed:
            lacking = plane.blank or not plane.current_state_id or plane.state_id != plane.current_state_id
        step = self._pattern.step()
        reason = replayable(self._registered()) or why_no_step(step)
        if reason:
            self._tell_once(reason)
        if reason or lacking:
            return False
        self._backlog.begin([made.layout for made in step])
        return True

    def _sessions(self, asked: Iterator[int]) -> Session | None:
        """See ``_session``; ``asked`` counts."""
        return self._session(next(asked))

    def _session(self, asked: int) -> Session | None:
        """The session to act in; None to withdraw. ``asked``: earlier attempts at this call, which failed or met nobody."""
        if asked:
            self._threads.sleep(min(_LONGEST_PAUSE, _PAUSE * 2 ** min(asked, 10)))
        plane = self._plane
        with plane.changed:
            while not (self._over or self._call_lock.departed or self._call_lock.awaited):
                session = plane.session
                if plane.phase is Phase.ACTIVE and session is not None:
                    alone = session.group is None or session.size < self._terms.min_size
                    return None if alone or self._needed(session) else session
                if plane.phase is not Phase.FROZEN:
                    return None
                plane.changed.wait(_LOOK)
        return None

    def _needed(self, session: Session) -> bool:
        """True if a member may ask this one for the state: then its program must be in the calls. Under the plane's lock."""
        plan, trailer = session.plan, self._plane.trailer
        if session.member_id not in plan.holders:
            return False
        if trailer is None:
            return any(member_id not in plan.holders for member_id in session.view.ids)
        return any(slot.lacks_state for slot in trailer.slots)

    # --- what the log says ---------------------------------------------------------------------------------------------

    def _retire(self, why: str) -> None:
        """Stop acting until the program comes, and log ``why``."""
        self._retired = why
        text = "the others wait for this worker again, which is late: %s"
        level = self._level(why.partition("(")[0])
        logger.log(level, text, why, extra=self._plane.about("deputy_retires", why=why))

    def _level(self, what: str) -> int:
        """The level of a warning that a slow worker would log in each step: WARNING once in ``_QUIET`` seconds, else DEBUG."""
        now = self._threads.now()
        if now - self._warned.get(what, -math.inf) < _QUIET:
            return logging.DEBUG
        self._warned[what] = now
        return logging.WARNING

    def _hangs(self, waited: float) -> None:
        where = stack(self._plane)
        self._retire(f"it has been outside of calls for {waited:.0f} s (stall_timeout); its training thread is at:\n{where}")

    def _tell_once(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            text = "straggler_deadline has no effect now, and the others wait for this worker: %s"
            logger.info(text, why, extra=self._plane.about("no_deputy", why=why))


def replayable(registered: Registered | None) -> str:
    """Why a program cannot take over averages that it missed; empty if it can."""
    if registered is None:
        return "no state is registered: call register_state(model=..., optimizer=...)"
    return why_not_replayed(registered)
