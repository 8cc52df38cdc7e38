"""One simulated training process: the real data plane on simulated threads, between a simulated agent and simulated groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from consensus import View
from consensus.border import Installed, Order
from consensus.simulation import Host
from ftlib.core.backup.backup_worker import BackupWorker, Terms
from ftlib.core.calls.call import Call, Results
from ftlib.core.calls.observer import Observers
from ftlib.core.calls.session import Session
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.engine.catching_up import Obtained
from ftlib.core.engine.engine import Engine
from ftlib.core.engine.handover import Handover
from ftlib.core.engine.shard_agreement import word_of_the_finished
from ftlib.core.engine.waiting import Limits
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.ranks import RankAssignScheme
from ftlib.core.plane.rebuild import Rebuilder, RebuildError
from ftlib.core.replicas.whole import part_in, replica_of, shard_view
from ftlib.core.tensors.layout import Layout
from ftlib.core.tensors.layout_book import LayoutBook
from ftlib.core.tensors.trailer import Trailer
from ftlib.errors import Excluded, GroupError, ReplicaLost
from ftlib.frameworks.base import Group, GroupSpec
from ftlib.recovery import Border

from .groups.framework import SimulatedFramework
from .machine.threads import SimulatedThreads
from .parts.accelerator import SimulatedAccelerator, SimulatedHybrid
from .parts.door import Door, Pipe
from .peers.habits import Habits
from .peers.job import Job
from .peers.mates import SimulatedMates
from .peers.recovery import SimulatedRecovery
from .peers.requests import SimulatedInquiry
from .peers.state import SimulatedTransfer
from .programs.backward import OpenTrainer
from .programs.program import MixedTrainer
from .programs.trainer import Trainer

BUILD_TIMEOUT = 5.0
"""Seconds that building a group may take."""
STALL = 5.0
"""Seconds for which a backup worker acts at most."""
PENDING = 1 << 20
"""Bytes of results that it keeps at most."""


class Process:
    """What is behind a host's machine: ``SimulatedPlane``."""

    seeks = True

    def __init__(self, host: Host, jobs: Job, index: int) -> None:
        """``index``: the how manieth process of the job this is."""
        rng = Random(f"{jobs.seed} {host.id}")
        self.host = host
        self.jobs = jobs
        self.index = index
        part = part_in(host.machine.member)
        assert part is not None
        self.part = part
        """Of which replica it is which shard; one by itself is a replica of one shard."""
        self.threads = SimulatedThreads(host, rng, lambda: jobs.promises.violation)
        self.door = Door(host, rng, lambda: self.threads.over, lambda moment: jobs.tell(host, moment))
        self.plane = _Plane(self, self.threads)
        self.rooms = jobs.rooms_of(part.shard)
        self._framework = SimulatedFramework(host, self.threads, self.rooms) if jobs.accelerators is None else self._equip()
        self.mates = SimulatedMates(self, rng, self._mate_lost) if part.shards > 1 else None
        self._ranks = RankAssignScheme()
        orders = self._build, self._prepare, self._activated
        self._rebuilder = Rebuilder(self.plane, self.door, self._framework, *orders, part=part)
        limits = Limits()
        self._handover = Handover(lambda: self.plane, jobs.handover)
        self.call_lock = CallLock(limits.step_timeout, self.threads, lambda: self._handover.stays)
        self.transfer = SimulatedTransfer(self.plane, host, self.threads, rng, jobs.transfer_of, self.door.tell)
        self.observers, self._layouts = Observers(), LayoutBook()
        habits = jobs.habits or Habits()
        self._inquiry = SimulatedInquiry(self, self._layouts) if habits.program else None
        self._border = Border(self.plane, self.transfer, limits.step_timeout, beside=self.mates is None)
        self.transfer.serves(Border.PATH, self._border.source)
        follows = habits.follows and self.mates is None  # as the settings have it: all of a replica come in with the same call
        self.engine = Engine(
            self.plane,
            self.door,
            self._rebuilder,
            self.call_lock,
            limits,
            jobs.in_flight,
            load=self._load,
            obtain=self._obtain,
            inquiry=self._inquiry,
            recovery=SimulatedRecovery(self, follows=follows) if habits.program else None,
            observers=self.observers,
            layouts=self._layouts,
            mates=self.mates,
        )
        self._framework.on_fatal(lambda reason: self.engine.fail(Excluded(reason)))
        self.backup_worker: BackupWorker | None = None
        if habits.deadline is not None:
            assert self.mates is None, "the settings refuse straggler_deadline with replicas of several processes"
            terms = Terms(habits.deadline, STALL, 1, PENDING, veto=True)
            self.backup_worker = BackupWorker(
                self.plane, self.engine, self.call_lock, self.transfer.what, terms, lambda _view: None
            )
        acts = self.engine if self.backup_worker is None else self.backup_worker
        self.run, self.open, self.abandon = acts.run, acts.open, acts.abandon
        make = Trainer if jobs.habits is None else MixedTrainer if habits.program else OpenTrainer
        self.trainer: Trainer = make(self, rng)
        self._inbox = Pipe(host, rng, self.threads.happens)
        self._orders = self.threads.queue()
        if jobs.accelerators is not None:
            self.threads.thread(self._obey, "agent").start()
        self._rebuilder.start()
        if self.backup_worker is not None:
            self.backup_worker.start()
        self.threads.thread(self.trainer.run, "training").start()

    def __repr__(self) -> str:
        return f"<{self.host.name} {self.plane!r}>"

    # What the agent says

    def handle(self, order: Order) -> None:
        """See ``SimulatedPlane``."""
        self._inbox.send(lambda: self._heard(order))

    def _heard(self, order: Order) -> None:
        if isinstance(order, Installed):
            self.door.installed = order.view
        if self.jobs.accelerators is None:  # nothing that is done at once takes time
            self._rebuilder.handle(order)
        else:
            self._orders.put(order)

    def notice(self) -> None:
        """``FTLib.drain``."""
        self._handover.begin()
        self.call_lock.leave()

    # What other members ask

    def asked(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """See ``Inquiry.source``."""
        assert self._inquiry is not None
        return self._inquiry.source(query)

    def layout(self, start: bytes) -> Layout | None:
        """Of a call that was made here."""
        return self._layouts.find(start)

    # Inside

    def _obey(self) -> None:
        """The thread on which the agent's orders arrive. It waits in a freeze until a device has stopped."""
        while True:
            self._rebuilder.handle(self._orders.get())

    def _equip(self) -> SimulatedHybrid:
        assert self.jobs.accelerators is not None
        equipment = self.jobs.accelerators.equip()
        with self.threads.entered():
            accelerator = SimulatedAccelerator(self, self.jobs.accelerators, equipment, self.jobs.promises.freed)
            return SimulatedHybrid(self.host, self.threads, self.rooms, accelerator, equipment.deadlines)

    def computes_on(self, view_id: str, *, calls: bool = False) -> bool:
        """See ``SimulatedHybrid``."""
        return isinstance(self._framework, SimulatedHybrid) and self._framework.computes_on(view_id, calls=calls)

    def _activated(self, view: View) -> None:
        """``Lifetime._activated``."""
        self._framework.settled(view.epoch)
        session = self.plane.session
        word = None if self.mates is None or session is None else word_of_the_finished(self.plane, session)
        if self.mates is not None and word is not None:
            self.mates.vouch(word)

    def _mate_lost(self, error: ReplicaLost) -> None:
        """``Lifetime._mate_lost``. Where there is a device it waits until that has stopped, on a thread of its own."""
        if self.jobs.accelerators is None:
            self.engine.fail(error)
        else:
            self.threads.thread(lambda: self.engine.fail(error), "mates").start()

    def _load(self, call: Call, session: Session) -> bool:
        loaded = self.transfer.load(call, session)
        if loaded and self.plane.level:  # else it has to leave, and does so without the state
            self.jobs.promises.loaded(self, call)
            self.jobs.tell(self.host, "loaded")
        return loaded

    def _obtain(self, call: Call, session: Session, deadline: float) -> Obtained:
        found = self._border.obtain(call, session, deadline)
        if found is Obtained.HERE:
            self.jobs.promises.at_border(self, call)
            self.jobs.tell(self.host, "loaded")
        return found

    def _build(self, view: View) -> tuple[Mapping[str, int], Group | None]:
        """``FTLib._rebuild``, with simulated groups."""
        self.jobs.tell(self.host, "building")
        members = self.door.get_member_list()
        if tuple(member.id for member in members) != view.ids:
            raise RebuildError("the members changed meanwhile")
        acting = shard_view(view, self.part.shard) if self.mates is not None else view
        self._meet_mates(view)
        ranks, spec = self._plan_group(acting)
        if spec is None:
            return ranks, None
        try:
            return ranks, self._framework.rebuild(spec)
        except GroupError as error:
            raise RebuildError(str(error), [acting.ids[rank] for rank in error.peers]) from error

    def _meet_mates(self, view: View) -> None:
        """``Lifetime._meet_mates``."""
        replica = None if self.mates is None else replica_of(view, self.host.id)
        if self.mates is None or replica is None:
            return
        try:
            self.mates.connect(replica, BUILD_TIMEOUT, lambda: self._rebuilder.wants(view.epoch))
        except GroupError as error:
            raise RebuildError(str(error)) from error

    def _prepare(self, view: View) -> None:
        """``Lifetime._prepare``."""
        acting = shard_view(view, self.part.shard) if self.mates is not None else view
        _, spec = self._plan_group(acting) if self.host.id in acting else ({}, None)
        if spec is not None:
            self.jobs.tell(self.host, "preparing")
            self._framework.prepare(spec)

    def _plan_group(self, view: View) -> tuple[Mapping[str, int], GroupSpec | None]:
        members = view.members
        ranks = {member.id: self._ranks.get_rank_and_size(members, member.id)[0] for member in members}
        if len(members) == 1:
            return ranks, None
        return ranks, GroupSpec(view.view_id, view.epoch, ranks[self.host.id], len(members), {}, BUILD_TIMEOUT)


class _Plane(Plane):
    """The real one; what it does is told."""

    def __init__(self, process: Process, threads: SimulatedThreads) -> None:
        part = process.part
        replica = part.replica if part.shards > 1 else ""
        leaving = lambda: process.call_lock.leaving  # noqa: E731 - its value changes
        super().__init__(process.host.id, process.door.progress, threads, leaving=leaving, replica=replica)
        self._process = process

    def enter(self, call: Call) -> None:
        if call.by_backup:
            self._process.jobs.promises.stands_in(self._process)
        super().enter(call)

    def begin(self, session: Session) -> bool:
        begins = super().begin(session)
        adopts = session.donor is not None and self.finished < session.plan.call
        if begins and self.current is not None and not adopts:
            self._process.jobs.promises.begins(self._process, self.current)
        return begins

    def caught_up(self, state_id: str, number: int) -> bool:
        level = super().caught_up(state_id, number)
        if level:
            self._process.jobs.promises.caught_up(self._process, number)
        return level

    def hold(self, session: Session, results: Results, trailer: Trailer | None = None) -> bool:
        held = super().hold(session, results, trailer)
        if held:
            if trailer is not None:
                self._process.jobs.promises.held(self._process, session, results)
            self._process.jobs.tell(self._process.host, "held")
        return held

    def _finished(self, call: Call, results: Results) -> None:
        super()._finished(call, results)
        self._process.jobs.promises.finished(self._process, call, results)
        self._process.jobs.tell(self._process.host, "finished")

    def _freeze(self) -> None:
        super()._freeze()
        self._process.jobs.tell(self._process.host, "frozen")

    def activate(self, session: Session) -> bool:
        acting = super().activate(session)
        if acting:
            self._process.jobs.promises.acts(self._process, session)
            self._process.jobs.tell(self._process.host, "activated")
        return acting
