"""One lifetime: this process as one member, from looking for the job until it has left, or the others went on without it.

A lifetime owns all that belongs to a member id: consensus with its agent, data plane, rebuild thread, and the executor of
calls. A process that was excluded gets another lifetime (see ``rejoin``), as no part of an old one may ever act in a new one.
The program's registered state passes on, the framework stays, and everything else is made again.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from consensus import CarefulLogger, Consensus, ConsensusError, KeyRing, LeftError, Member, View, format_address
from consensus import ConfigError as ConsensusConfigError

from ..checkpoints.choice import Chooser
from ..checkpoints.names import ShardOf
from ..checkpoints.resume import PATH as RESUMPTION
from ..checkpoints.resume import Resumption
from ..common.device_waits import drop_held
from ..common.memory import room
from ..common.traces import Traces
from ..core.backup.backup_worker import BackupWorker, Terms, replayable
from ..core.calls.call import Call
from ..core.calls.observer import Observers
from ..core.calls.open_call import OpenCall
from ..core.calls.session import Session
from ..core.engine.call_lock import CallLock
from ..core.engine.callbacks import Listeners
from ..core.engine.engine import Engine
from ..core.engine.inquiry import PATH as INQUIRY
from ..core.engine.inquiry import Inquiry
from ..core.engine.shard_agreement import word_of_the_finished
from ..core.engine.waiting import Limits
from ..core.plane.facts import facts
from ..core.plane.hang import end_hung
from ..core.plane.phase import Phase
from ..core.plane.plane import Plane
from ..core.plane.ranks import RankAssignScheme
from ..core.plane.rebuild import Rebuilder, RebuildError
from ..core.plane.step_times import StepTimes
from ..core.replicas.whole import facts_of, replica_of, shard_view
from ..core.tensors.layout_book import LayoutBook
from ..errors import ConfigError, Excluded, GroupError, JobEnded, JoinError, ReplicaLost
from ..frameworks.base import Framework, Group, GroupSpec
from ..recovery import Border, Catchup, Donor, GroupTransport, HTTPTransport, RecoveryLimits, Transfer, WarmStandby
from ..settings.config import VETO, Settings
from ..state.registry import Registered
from ..status import Status
from . import stacks
from .binding import bind
from .chaos import PATH as CHAOS
from .chaos import Chaos
from .gathering import gathering
from .replica.introductions import PATH as INTRODUCTIONS
from .replica.introductions import Introductions
from .replica.mates import ENDED, Connections
from .replica.meshes import Meshes
from .spare import Spare
from .supervisor_client import announce

logger = CarefulLogger("ftlib")

CLOSE_TIMEOUT = 1.0
"""Seconds that the others get, when this member closes, to agree that it leaves; also the time for threads to end."""
SETTLED = 1.0
"""Seconds in which a view change ends, once it is known which members are gone."""
MEET_TIMEOUT = 20.0
"""Seconds in which the processes of one replica connect to each other, once they are in a view together."""
_LOOK = 0.05
"""Seconds between two checks whether this worker has to go, while it looks for the job."""
EXPLAIN_TIMEOUT = 3.0
"""Seconds that the consensus gets, after ``join_timeout``, to report what it found at the introducers."""


@dataclass(frozen=True, slots=True)
class Means:
    """What all lifetimes of a process share."""

    settings: Settings
    framework: Framework
    rank_assign: RankAssignScheme
    ring: KeyRing | None
    call_lock: CallLock
    listeners: Listeners = field(default_factory=Listeners)
    chaos: Chaos | None = None
    """Takes faults from outside; None where none may be injected."""
    more_facts: dict[str, Callable[[], Any]] = field(default_factory=dict)
    """What layers above add to the facts, by its name."""
    traces: Traces | None = None
    """Gets records of what happens; None if nobody wants any."""


@dataclass(frozen=True, slots=True)
class _Past:
    """The lifetime before this one."""

    member_id: str
    why: str
    """Why it ended, without the remedy, which is this lifetime."""
    ended: float
    """When this process learned of the end (monotonic seconds)."""


class Lifetime:
    """NEW -> ``begin`` -> a member, or on its way to be one -> ``end``. No way back."""

    def __init__(self, means: Means, consensus: Consensus, former: Lifetime | None = None, why: str = "") -> None:
        """Starts nothing. ``former``: the lifetime before this one, which ended for the reason ``why``."""
        settings = means.settings
        self.consensus = consensus
        call_lock, config = means.call_lock, settings.consensus
        plane = Plane(
            consensus.id,
            consensus.progress,
            job=config.job,
            step_times=StepTimes(settings.straggler_factor, settings.straggler_steps),
            leaving=call_lock.is_leaving,
            rejoins=settings.rejoin,
            patience=settings.step_timeout,
            former=None if former is None else former.plane,
            traces=means.traces,
            replica=settings.part.replica if settings.part.shards > 1 else "",
        )
        self.plane: Plane = plane
        if former is not None:
            plane.counters.time_use.anew(plane.threads.now())
        allowed, spares = _allowed(settings), config.max_size is not None
        observers, layouts = Observers(), LayoutBook()
        self.transfer: Transfer = Transfer(
            plane,
            config.join_timeout,
            settings.step_timeout,
            means.ring,
            observers=observers,
            former=None if former is None else former.transfer,
        )
        registered = self.transfer.what
        self._border = Border(plane, self.transfer, settings.step_timeout, beside=settings.shards == 1)
        own = ShardOf(settings.shard, settings.shards)
        self._chooser = Chooser(plane, means.ring, config.join_timeout, own)
        self.resumption = Resumption(plane, self.transfer, config.join_timeout, observers, self._chooser, own)
        allocate = means.framework.allocate
        copies = allocate if settings.recovery_transport == "group" else room  # what goes by HTTP needs no special memory
        self.donor = Donor(plane, registered, layouts, observers, allocate, copies)
        self._inquiry = Inquiry(plane, layouts, registered, means.ring)
        self._rebuilder = Rebuilder(
            plane,
            consensus,
            means.framework,
            self._rebuild,
            self._prepare,
            self._activated,
            functools.partial(facts, plane, means.framework, means.more_facts),
            self._given_up,
            part=settings.part,
            named=self._named,
        )
        part = settings.part
        self.meshes: Meshes = Meshes(
            part, means.ring, self._known_members, self._mate_lost, settings.step_timeout, config.join_timeout
        )
        self._introductions = Introductions()
        self.mates: Connections | None = None if part.shards == 1 else Connections(part.shard, self._mate_lost)
        standby = self._standby if spares else None
        catchup = Catchup(plane, registered, self._transport, allowed, standby, allocate, self._known_members)
        self.engine = Engine(
            plane,
            consensus,
            self._rebuilder,
            call_lock,
            Limits(
                settings.step_timeout,
                settings.min_size,
                drain_patience=2 * config.exclude_after + SETTLED
                if settings.drain_patience is None
                else settings.drain_patience,
                veto=settings.nonfinite == VETO,
                held=allowed.pending if allowed.live else 0,
            ),
            settings.in_flight,
            load=self.transfer.load,
            obtain=self._border.obtain,
            registered=registered,
            inquiry=self._inquiry,
            recovery=catchup,
            admission=Spare(plane, catchup).wait if spares else None,
            observers=observers,
            layouts=layouts,
            allocate=allocate,
            mates=self.mates,
        )
        self.backup_worker = self._backup_worker(settings, means)
        self.run: Callable[[Call], Status] = self.engine.run if self.backup_worker is None else self.backup_worker.run
        """Finish a call of the program's while this thread has the call lock; returns its status. Raises what ends this
        lifetime.
        """
        self.open: Callable[[OpenCall], bool] = self.engine.open if self.backup_worker is None else self.backup_worker.open
        """Enter an open call in the middle of backward, if that may be; this thread has the call lock."""
        self.abandon: Callable[[], None] = self.engine.abandon if self.backup_worker is None else self.backup_worker.abandon
        """The open call gets no gradients; this thread has the call lock."""
        self.known: View | None = None
        """The job's view when this worker met the job."""
        self._means = means
        self._past = None if former is None else _Past(former.plane.member_id, why.partition("; ")[0], time.monotonic())
        self._bounds = threading.Lock()
        """Held while this lifetime begins or ends: a half begun one could not be ended."""
        self._ended = False
        self._parted_in_vain = False
        """True once a goodbye has waited for the others, and they have not agreed in time."""

    def anew(self, why: str) -> Lifetime | None:
        """Return the next lifetime of this process, not begun; None if the consensus cannot begin again."""
        consensus = self.consensus.anew()
        return None if consensus is None else Lifetime(self._means, consensus, self, why)

    # --- the beginning -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Meet the job. Raises ConfigError; JoinError after ``join_timeout``; LeftError if ``end`` was called meanwhile."""
        with self._bounds:
            if self._ended:
                raise LeftError("closed")
            self._start()
        self._meet()
        if self._past is not None:
            self._announce(0)  # before it can be in a view: a fencing launcher must not take it for the past lifetime

    def _start(self) -> None:
        settings, consensus = self._means.settings, self.consensus
        try:
            interface = bind(consensus, settings)
        except ConsensusError as error:
            raise JoinError(str(error)) from error
        meta = dict(self._means.framework.start(interface))
        self._means.framework.on_fatal(lambda reason: self.engine.fail(Excluded(f"{reason}: start this worker anew")))
        meta["_room"] = secrets.token_hex(8)  # only members learn it: with the view id, it names a group in the store
        if settings.name:
            meta["name"] = settings.name
        if settings.supervisor:
            meta["supervisor"] = settings.supervisor
        meta |= facts_of(settings.part)
        if self.mates is not None:
            meta |= self.mates.listen(interface)
            consensus.serve(INTRODUCTIONS, self._introductions.source)
        self.meshes.bind(interface)
        consensus.serve(Transfer.PATH, self.transfer.source)
        consensus.serve(Border.PATH, self._border.source)
        consensus.serve(INQUIRY, self._inquiry.source)
        consensus.serve(RESUMPTION, self.resumption.source)
        consensus.serve(Chooser.PATH, self._chooser.source)
        consensus.serve(Donor.PATH, self.donor.source)
        consensus.serve(stacks.PATH, stacks.source)
        if self._means.chaos is not None and self._means.ring is not None:  # without a secret anybody could ask
            consensus.serve(CHAOS, functools.partial(self._means.chaos.source, consensus))
        self._rebuilder.start()
        if self.backup_worker is not None:
            self.backup_worker.start()
        try:
            consensus.start(self._rebuilder, meta=meta)
        except ConsensusConfigError as error:
            raise ConfigError(str(error)) from None
        except ConsensusError as error:
            raise JoinError(str(error)) from error

    def _meet(self) -> None:
        config, plane = self._means.settings.consensus, self.plane
        timeout = config.join_timeout
        # The consensus gives up by itself, and has the best reason: it asks the introducers once more before it reports.
        self.known = self._wait_known(timeout + EXPLAIN_TIMEOUT)
        admitted = self.known is not None and self.consensus.member.id in self.known
        if admitted or self.known is None:
            with plane.changed:
                plane.changed.wait_for(
                    lambda: plane.leaving() or plane.phase in (Phase.ACTIVE, Phase.STOPPED),
                    timeout if admitted else EXPLAIN_TIMEOUT,
                )
        if plane.leaving():
            raise LeftError("asked to leave before it had met the job")
        if plane.error is not None:
            raise plane.error
        if self.known is not None and (plane.phase is Phase.ACTIVE or not admitted):
            return
        asked = ", ".join(config.introducers) or "no introducers were given"
        raise JoinError(
            f"no cluster of {config.initial_size} members came up within {timeout:g} s ({asked}); "
            "are they started, and reachable?"
        )

    def _wait_known(self, timeout: float) -> View | None:
        """Return the job's view once it is known; None after ``timeout``, if the consensus ends, or if this worker has to go.

        The last is polled, not an event: a signal handler cannot set an event that its own thread waits for.
        """
        deadline = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            known = self.consensus.wait_known(min(_LOOK, max(0.0, deadline - began)))
            if known is not None or self.plane.leaving() or self.plane.phase is Phase.STOPPED or began >= deadline:
                return known
            if time.monotonic() - began < _LOOK:  # the consensus has ended, and the plane is about to learn it
                with self.plane.changed:
                    self.plane.changed.wait_for(lambda: self.plane.phase is Phase.STOPPED, _LOOK)

    # --- the end -------------------------------------------------------------------------------------------------------

    def goodbye(self, timeout: float, *, ended: bool) -> None:
        """Leave, if this is still a member, and wait until the others agree, at most ``timeout`` seconds.

        A worker that has stopped by itself waits, too: if it leads the change to the others' view, it may be the only one that
        knows what was decided, and they could not go on. ``ended``: True if the program has come to its end; a newcomer's end
        says nothing of the job.
        """
        plane = self.plane
        if getattr(self.consensus, "member", None) is None:
            return
        if self.engine.said_goodbye:  # the trailer carried the goodbye to all members: a second request could only disturb
            with plane.changed:
                plane.changed.wait_for(lambda: plane.phase is Phase.STOPPED, timeout / 2)
        if plane.phase is Phase.STOPPED and (plane.released or self._parted_in_vain):
            return
        if plane.phase is Phase.STOPPED:  # whoever has stopped it may not have come to say so yet
            ended_call, ended = None, False
        else:
            if self.mates is not None:
                self.mates.part(ended=ended)
            ended_call = plane.part()
        with contextlib.suppress(ConsensusError):
            if ended_call is not None:
                self.consensus.average_success(ended_call)  # the training thread may be about to say so
            self.consensus.leave(ended=ended and not plane.newcomer)
        with plane.changed:
            left = plane.changed.wait_for(lambda: plane.released and plane.phase is Phase.STOPPED, timeout)
        if not left:
            self._parted_in_vain = True
            logger.debug(
                "the others did not confirm this worker's leave within %g s", timeout, extra=plane.about("leave_unconfirmed")
            )
            plane.stop(LeftError("left without the others' confirmation"))

    def end(self) -> None:
        """Release everything: the agent has ended, and its port is free, once this returns. Idempotent."""
        plane = self.plane
        group = plane.stop(LeftError("closed"))
        if group is not None and plane.running is not None:
            group.abort()
        if self.backup_worker is not None:
            self.backup_worker.end(CLOSE_TIMEOUT)
        with self._bounds:
            self._ended = True
            with contextlib.suppress(ConsensusError):
                self.consensus.stop()
            self._rebuilder.close(CLOSE_TIMEOUT)
        if self.mates is not None:
            self.mates.close()
        self.meshes.close()
        self.engine.forget()  # this object may stay uncollected for long, and its buffers are as large as the model
        self.donor.forget()
        self.transfer.close()
        self.resumption.forget()
        drop_held(CLOSE_TIMEOUT)

    def register(self, registered: Registered, *, sync: bool = True) -> None:
        """Register the state (see ``Transfer.register``). Raises ConfigError if it does not fit the settings."""
        if self.backup_worker is not None and (reason := replayable(registered)):
            raise ConfigError(f"straggler_deadline is set, but a late worker could not take over what it missed: {reason}")
        if self._means.settings.nonfinite == VETO and registered.of(torch.amp.GradScaler):
            logger.warning(
                "a GradScaler is registered, and nonfinite=veto: an average with inf or nan is applied by nobody, so the "
                "scaler does not learn of it and never lowers its scale; set nonfinite=pass (FTLIB_NONFINITE) at every worker",
                extra=self.plane.about("scaler_and_veto"),
            )
        self.transfer.register(registered, sync=sync)

    def _backup_worker(self, settings: Settings, means: Means) -> BackupWorker | None:
        """Return the backup worker that stands in while the program is late; None if ``straggler_deadline`` is not set."""
        if settings.straggler_deadline is None:
            return None
        terms = Terms(
            settings.straggler_deadline,
            settings.consensus.stall_timeout,
            settings.min_size,
            _allowed(settings).pending,
            settings.nonfinite == VETO,
        )
        return BackupWorker(self.plane, self.engine, means.call_lock, self.transfer.what, terms, means.listeners.tell)

    # --- in a call -----------------------------------------------------------------------------------------------------

    def _http(self) -> HTTPTransport:
        return HTTPTransport(self._means.ring, self.plane.member_id, bandwidth=self._means.settings.recovery_bandwidth)

    def _standby(self, registered: Registered, own: Call) -> WarmStandby:
        """Return the standby by which a spare gets the state while it waits."""
        max_size, allowed = self._means.settings.consensus.max_size, _allowed(self._means.settings)
        assert max_size is not None
        known, allocate = functools.partial(self.consensus.wait_known, 0.0), self._means.framework.allocate
        return WarmStandby(self.plane, registered, own, self._http(), known, max_size, allowed, allocate)

    def _transport(self) -> HTTPTransport:
        """Return the transport by which a joiner gets the state, beside the others' training."""
        settings = self._means.settings
        if settings.recovery_transport == "http":
            return self._http()
        patience, bandwidth = settings.step_timeout + CLOSE_TIMEOUT, settings.recovery_bandwidth
        allocate = self._means.framework.allocate
        return GroupTransport(self._means.ring, self.plane, patience=patience, bandwidth=bandwidth, allocate=allocate)

    # --- on the rebuild thread -----------------------------------------------------------------------------------------

    def _rebuild(self, view: View) -> tuple[Mapping[str, int], Group | None]:
        """Build the group of an installed view, in three steps. Raises RebuildError or ConfigError; never a false success."""
        members = self.consensus.get_member_list()
        if tuple(member.id for member in members) != view.ids:
            raise RebuildError(f"the members changed while the group of {view} was to be built")
        self._meet_mates(view)
        ranks, spec = self._gathering(view)
        if spec is None:
            return ranks, None
        try:
            return ranks, self._means.framework.rebuild(spec)
        except GroupError as error:
            by_rank = {rank: member_id for member_id, rank in ranks.items()}
            raise RebuildError(str(error), [by_rank[peer] for peer in error.peers if peer in by_rank]) from error

    def _prepare(self, view: View) -> None:
        """Begin to build the group of a view that may be installed soon."""
        try:
            _, spec = self._gathering(view)
        except RebuildError:  # ``_rebuild`` raises it again
            return
        if spec is not None:
            self._means.framework.prepare(spec)

    def _gathering(self, view: View) -> tuple[Mapping[str, int], GroupSpec | None]:
        settings = self._means.settings
        acting = view if self.mates is None else shard_view(view, settings.shard)
        if self.consensus.member.id not in acting:
            raise RebuildError(f"this worker's replica is not whole in {view}")
        return gathering(acting, self.consensus.member.id, self._means.rank_assign, settings.step_timeout)

    def _meet_mates(self, view: View) -> None:
        """Connect to the other processes of this replica. Raises RebuildError."""
        replica = None if self.mates is None else replica_of(view, self.consensus.member.id)
        if self.mates is None or replica is None:
            return
        timeout = min(MEET_TIMEOUT, self._means.settings.step_timeout)
        try:
            self.mates.connect(replica, timeout, lambda: self._rebuilder.wants(view.epoch))
        except GroupError as error:
            raise RebuildError(str(error)) from error

    def _named(self, error: Exception) -> Exception:
        """``error``, with which the consensus ended this lifetime, as it is for a process of a replica of several."""
        if self.mates is None or type(error) is not Excluded:
            return error
        if self.mates.ended:
            return JobEnded(ENDED)
        part = self._means.settings.part
        lost = ReplicaLost(f"replica {part.replica} is out, with all of its {part.shards} processes: {error}")
        self.meshes.abort(lost)
        return lost

    def _known_members(self) -> Sequence[Member]:
        """The members of the job, as far as this one knows; it may be none itself yet."""
        view = self.consensus.wait_known(0.0)
        return () if view is None else view.members

    def _mate_lost(self, error: ReplicaLost) -> None:
        """Another process of this replica has ended: end this lifetime, and with it whatever the program waits in."""
        self.meshes.abort(error)
        self.engine.fail(error)

    def _vouch(self, session: Session) -> None:
        """Tell the mates, in the new view, that the newest call is finished here: rule 1 holds again in each."""
        word = None if self.mates is None else word_of_the_finished(self.plane, session)
        if self.mates is not None and word is not None:
            self.mates.vouch(word)

    def _activated(self, view: View) -> None:
        """Notify the launcher, on a thread of its own, after a view was activated."""
        session = self.plane.session
        self._means.framework.settled(view.epoch)
        if session is not None:
            self._vouch(session)
            self.donor.activated(session)
            self.transfer.activated(session)
        if self._past is not None:
            self._tell_of(self._past, view)
            self._past = None
        if self._means.settings.supervisor:
            threading.Thread(target=self._announce, args=(view.epoch,), name="ftlib-announce", daemon=True).start()

    def _given_up(self) -> None:
        """Handle a program that hangs, as the others see it: ends it if a launcher starts another, unless it may rejoin."""
        settings, call_lock = self._means.settings, self._means.call_lock
        returned = call_lock.returned()
        if settings.supervisor and not settings.rejoin:
            task = (self.plane, lambda: self._ended or call_lock.leaving or returned(), settings.consensus.stall_timeout)
            threading.Thread(target=end_hung, args=task, name="ftlib-hung", daemon=True).start()

    def _tell_of(self, past: _Past, view: View) -> None:
        took, session = time.monotonic() - past.ended, self.plane.session
        assert session is not None  # it has just been activated
        fields = {"was": past.member_id, "why": past.why, "seconds": took}
        logger.info(
            "rejoined as %s (was %s) in epoch %d, %.1f s after this was learned: %s",
            session.name(session.member_id),
            past.member_id[:6],
            view.epoch,
            took,
            past.why,
            extra=self.plane.about("rejoined", **fields),
        )

    def _announce(self, epoch: int) -> None:
        settings, ring = self._means.settings, self._means.ring
        if not settings.supervisor:
            return
        if ring is not None and (line := ring.follow()) is not None:
            logger.info("%s", line)
        member = self.consensus.member
        announce(
            settings.supervisor,
            None if ring is None else ring.first.vouch,
            job=settings.consensus.job,
            member=member.id,
            address=format_address(member.address),
            epoch=epoch,
        )


def _allowed(settings: Settings) -> RecoveryLimits:
    """Return the limits of time and memory for a joiner."""
    pending = int(settings.recovery_pending_mb * 2**20)
    return RecoveryLimits(settings.step_timeout / 2, pending, live=settings.recovery == "live")
