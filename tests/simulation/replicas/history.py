"""One random history of replicas that shard inside, and what is wrong with it.

Members reduce call after call in the groups of their shards, tell their replica's members that they hold a result, and finish
by ``Holders``. Processes die at any moment, several at once, also while a view change is under way. Each survivor freezes at
its own moment; the next view has the whole replicas that are left (``whole_replicas``) and goes on by ``plan_shards``. Messages
arrive in any order. Broken replicas stop, and come back whole as other processes, which get the state from members of their
shard.

A member's state is the list of all that was applied to it: for each call the replicas whose contributions were in the average,
and the view. So two shards of one model fit together if and only if their lists are equal.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from consensus import Member
from ftlib.core.replicas.agreement import Holders, ShardPlan, ShardReport, plan_shards
from ftlib.core.replicas.whole import facts_of, part_in, whole_replicas
from ftlib.settings.replicas import Part

Average = tuple[int, tuple[str, ...]]
"""The epoch in which a call was reduced, and the replicas that contributed."""
MOST_EVENTS = 10_000
TELLING = {"_finish", "_adopt", "_load"}
"""Moments at which others lack what one member has: deaths are likelier after these."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Which rules are kept; tests break them one by one."""

    agrees: bool = True
    """A member finishes a call only once all members of its replica hold their results."""
    agrees_to_adopt: bool = True
    """... also one whose result it has adopted."""
    by_view: bool = True
    """What was heard in another view does not count."""
    whole_only: bool = True
    """Replicas that are not whole have no say in a plan."""
    own_shard: bool = True
    """All shards of a view have the same replicas, not each shard the members that it has left."""


@dataclass(slots=True)
class Process:
    """One process, and what its data plane has."""

    member: Member
    part: Part
    alive: bool = True
    over: bool = False
    """Its replica was lost: it stops, and nothing that it has counts any more."""
    epoch: int = 0
    """The view that it acts in, or has acted in last."""
    frozen: bool = True
    counted: bool = False
    """It has been in a whole replica."""
    state: bool = False
    loaded: bool = False
    """It has loaded a state in this view, but does not know yet that all of its replica have."""
    applied: list[Average] = field(default_factory=list)
    results: dict[int, Average] = field(default_factory=dict)
    """Results that can be given, by call."""
    entered: int = 0
    """The call to whose operation it has contributed in this view."""
    adopted: bool = False
    holders: Holders = field(default_factory=lambda: Holders(()))

    @property
    def id(self) -> str:
        """Its member id."""
        return self.member.id

    @property
    def finished(self) -> int:
        """The newest call that it has finished."""
        return len(self.applied)

    @property
    def acts(self) -> bool:
        """True if it may do something in its view."""
        return self.alive and not self.over and not self.frozen

    def report(self) -> ShardReport:
        """What it has, frozen."""
        return ShardReport(self.finished, max(self.results, default=0), self.state)


@dataclass(frozen=True, slots=True)
class Installed:
    """A view with its plan."""

    epoch: int
    replicas: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    plan: ShardPlan
    shards: tuple[tuple[str, ...], ...]
    """The members of each shard's group."""


class Wrong(AssertionError):
    """A promise is broken."""


class History:
    """Random choices come from ``seed`` alone."""

    def __init__(self, seed: int, rules: Rules = Rules(), *, replicas: int = 0, shards: int = 0, calls: int = 8) -> None:
        """``replicas``, ``shards``: 0 draws them. ``calls``: how many calls the survivors have to finish."""
        self._random = random.Random(seed)
        self._rules = rules
        self._calls = calls
        self.happened: Counter[str] = Counter()
        self._shards = shards or self._random.choice((2, 2, 3))
        count = replicas or self._random.choice((2, 3, 3, 4))
        self._deaths = self._random.choice((1, 2, 3, 5, 7))
        self._danger = self._random.choice((0.002, 0.01, 0.03))
        self._slow = f"replica-{self._random.randrange(2 * count)}/"
        """Which replica is slow; in half of the histories none."""
        self._processes: dict[str, Process] = {}
        self._order: list[str] = []
        """The members of the current view and those that are being admitted, by seniority."""
        self._lives: Counter[str] = Counter()
        self._views: dict[int, Installed] = {}
        self._epoch = 1
        self._wanted = False
        """True while a view change is under way."""
        self._words: list[tuple[str, str, int, int]] = []
        """(receiver, sender, epoch, call): what members of replicas tell each other."""
        self._contributed: dict[tuple[int, int, int], set[str]] = {}
        self._donations: list[tuple[int, str, str]] = []
        self._loads: list[tuple[int, str]] = []
        self._waiting: list[str] = []
        """Ids that are to be admitted by the next view."""
        self.lost = False
        for number in range(count):
            self._start(f"replica-{number}")

    # --- the course ----------------------------------------------------------------------------------------------------

    def play(self) -> History:
        """Play it to its end. ``Wrong`` if a promise was broken."""
        for process in self._processes.values():
            process.state = True
        self._admit()
        while self._waiting:
            self._admit()
        self._install()
        for _ in range(MOST_EVENTS):
            if self.lost or self._complete():
                self._judge()
                return self
            moves = list(self._moves())
            if not moves:
                raise Wrong(f"nobody can do anything: {self._places()}")
            name, *arguments = self._chosen(moves)
            getattr(self, name)(*arguments)
            if self._deaths and self._random.random() < (0.2 if name in TELLING else self._danger):
                self._die()
        raise Wrong(f"no end: {self._places()}")

    def _chosen(self, moves: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """One of the moves; a replica that is slow seldom gets its results before the others have finished."""
        move = self._random.choice(moves)
        for _ in range(6):
            late = move[1] if move[0] == "_reduce" else self._donations[move[1]][1] if move[0] == "_adopt" else ""
            if not late.startswith(self._slow):
                break
            move = self._random.choice(moves)
        return move

    def _moves(self) -> Iterator[tuple[Any, ...]]:
        for index in range(len(self._words)):
            yield "_hear", index
        for index in range(len(self._donations)):
            yield "_adopt", index
        for index in range(len(self._loads)):
            yield "_load", index
        for process in self._live():
            if self._wanted and not process.frozen:
                yield "_freeze", process.id
            if process.frozen and process.counted and process.epoch < self._epoch and not self._wanted:
                yield "_activate", process.id
            if process.acts and process.loaded and process.holders.complete:
                yield "_have", process.id
            if not process.acts or not process.state or process.finished >= self._calls:
                continue
            view, call = self._views[process.epoch], process.finished + 1
            if call in process.results:
                if process.holders.complete or not self._agrees(process):
                    yield "_finish", process.id
            elif call > view.plan.call and process.entered < call:
                yield "_enter", process.id
            elif process.entered == call and self._all_entered(process, call):
                yield "_reduce", process.id
        if self._wanted and all(process.frozen for process in self._live()):
            yield ("_install",)
        if not self._wanted and self._waiting:
            yield ("_change",)
        for replica in self._lives:
            if self._lives[replica] < 4 and not self._runs(replica):
                yield "_start", replica

    def _live(self) -> list[Process]:
        """Members of the newest view that go on."""
        return [p for m in self._order if (p := self._processes[m]).alive and not p.over]

    def _complete(self) -> bool:
        live = self._live()
        quiet = not self._wanted and not self._waiting and not self._loads
        return quiet and all(p.state and not p.frozen and p.epoch == self._epoch and p.finished >= self._calls for p in live)

    # --- processes -----------------------------------------------------------------------------------------------------

    def _start(self, replica: str) -> None:
        """A launcher starts a whole replica."""
        self._lives[replica] += 1
        for shard in self._random.sample(range(self._shards), self._shards):
            part = Part(f"{replica}/{self._lives[replica]}", shard, self._shards)
            member = Member(id=f"{part.replica}.{shard}", host="127.0.0.1", port=1, meta=tuple(sorted(facts_of(part).items())))
            assert part_in(member) == part
            self._processes[member.id] = Process(member, part)
            self._waiting.append(member.id)
        self.happened["started"] += 1

    def _runs(self, replica: str) -> bool:
        return any(p.alive and p.part.replica.partition("/")[0] == replica for p in self._processes.values())

    def _die(self) -> None:
        """One or more processes die at this moment."""
        live = self._live()
        many = min(self._deaths, self._random.choice((1, 1, 1, 2, 3)), len(live))
        for process in self._random.sample(live, many):
            process.alive = False
            self._deaths -= 1
            self.happened["deaths"] += 1
        self._wanted = True

    # --- a view change -------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        self._admit()
        self._wanted = True

    def _admit(self) -> None:
        """Some or all of those that wait come into the next view."""
        first, *rest = self._waiting
        now = [first, *(m for m in rest if self._random.random() < 0.7)]
        self._order += now
        self._waiting = [m for m in rest if m not in now]

    def _freeze(self, member: str) -> None:
        self._processes[member].frozen = True

    def _install(self) -> None:
        """All that go on have frozen and reported: choose the next view, and its plan."""
        self._order = [p.id for p in self._live()]
        whole = whole_replicas([self._processes[m].member for m in self._order])
        reports = {m: self._processes[m].report() for m in self._order}
        chosen = [replica.ids for replica in whole]
        plan = plan_shards(chosen, reports)
        if not self._rules.whole_only and reports:
            plan = self._plan_of_all(chosen, reports, plan)
        self._epoch += 1
        self._wanted = False
        self._donations.clear()
        self._loads.clear()
        there = {m for ids in chosen for m in ids}
        for process in self._live():
            if process.id in there and not process.counted:
                process.counted = True
                process.holders = Holders(next(ids for ids in chosen if process.id in ids))
            if process.id not in there and (self._rules.own_shard or not process.state):
                self._end_broken(process)
        groups = tuple(
            tuple(p.id for p in self._live() if p.part.shard == shard and (p.id in there or not self._rules.own_shard))
            for shard in range(self._shards)
        )
        names = tuple(replica.name for replica in whole)
        self._views[self._epoch] = Installed(self._epoch, tuple(chosen), names, plan, groups)
        self._order = [p.id for p in self._live()]
        if plan.lost:
            able = [ids for ids in chosen if all(reports[m].state for m in ids)]
            if able:
                raise Wrong(f"lost, though {able} are whole and have the state")
            self.lost = True
            self.happened["lost"] += 1
            return
        self.happened["views"] += 1
        self.happened["keepers"] += len(plan.keepers)
        self.happened["adoptions"] += len(plan.adoptions)
        if odd := {donor for _, donor in plan.adoptions} - there:
            raise Wrong(f"{odd} shall give results, but are in no whole replica")
        self._judge(plan)

    def _end_broken(self, process: Process) -> None:
        """A member whose replica is not whole: ReplicaLost if it was; the launcher ends what is left of a broken one."""
        mates = [p for p in self._processes.values() if p.part.replica == process.part.replica]
        if process.counted or not all(p.alive for p in mates):
            for mate in mates:
                mate.over, mate.alive = True, False
            self._waiting = [m for m in self._waiting if self._processes[m].alive]
            self.happened["broken"] += 1

    def _plan_of_all(self, chosen: list[tuple[str, ...]], reports: dict[str, ShardReport], plan: ShardPlan) -> ShardPlan:
        """The plan where also what only members of broken replicas have finished counts as finished."""
        newest = max(report.finished for report in reports.values())
        if newest <= plan.call or plan.lost:
            return plan
        keepers: list[str] = []
        adoptions: list[tuple[str, str]] = []
        holders: list[str] = []
        blank = plan.blank
        for ids in chosen:
            if set(ids) & set(plan.blank):
                continue
            holders += ids
            for shard, m in enumerate(ids):
                donors = [d for d in reports if self._processes[d].part.shard == shard and reports[d].held == newest]
                if reports[m].held == newest:
                    keepers.append(m)
                elif donors:
                    adoptions.append((m, donors[0]))
        return ShardPlan(newest, tuple(keepers), tuple(adoptions), blank, tuple(holders))

    def _activate(self, member: str) -> None:
        """The newest view is active at ``member``."""
        process, view = self._processes[member], self._views[self._epoch]
        plan = view.plan
        process.frozen, process.epoch, process.entered, process.adopted = False, view.epoch, 0, False
        process.loaded = False
        process.results = {call: average for call, average in process.results.items() if call == plan.call}
        if member in plan.blank:
            process.state, process.results = False, {}
            self._loads.append((view.epoch, member))
            process.holders.enter(self._named(process.epoch), plan.call)
        else:
            self._expect(process)
            if plan.call == process.finished or plan.call in process.results:
                self._tell(process, plan.call)
        for adopter, donor in plan.adoptions:
            if adopter == member:
                self._donations.append((view.epoch, adopter, donor))

    # --- calls ---------------------------------------------------------------------------------------------------------

    def _expect(self, process: Process) -> None:
        process.holders.enter(self._named(process.epoch), process.finished + 1)

    def _named(self, epoch: int) -> int:
        return epoch if self._rules.by_view else 0

    def _agrees(self, process: Process) -> bool:
        return self._rules.agrees and (self._rules.agrees_to_adopt or not process.adopted)

    def _enter(self, member: str) -> None:
        process = self._processes[member]
        process.entered = process.finished + 1
        self._contributed.setdefault((process.epoch, process.part.shard, process.entered), set()).add(member)

    def _all_entered(self, process: Process, call: int) -> bool:
        group = self._views[process.epoch].shards[process.part.shard]
        return self._contributed.get((process.epoch, process.part.shard, call), set()) >= set(group)

    def _reduce(self, member: str) -> None:
        """The operation ends at ``member``: all of its shard are in the call, so nobody needs the results of the one before."""
        process, call = self._processes[member], self._processes[member].finished + 1
        group = self._views[process.epoch].shards[process.part.shard]
        names = tuple(sorted(self._processes[m].part.replica for m in group))
        process.results = {call: (process.epoch, names)}
        self._tell(process, call)

    def _tell(self, process: Process, call: int) -> None:
        view = self._views[process.epoch]
        for mate in next((ids for ids in view.replicas if process.id in ids), ()):
            if mate == process.id:
                process.holders.receive(mate, self._named(process.epoch), call)
            else:
                self._words.append((mate, process.id, self._named(process.epoch), call))

    def _hear(self, index: int) -> None:
        receiver, sender, epoch, call = self._words.pop(index)
        process = self._processes[receiver]
        if process.alive and not process.over:
            process.holders.receive(sender, epoch, call)

    def _finish(self, member: str) -> None:
        process = self._processes[member]
        process.applied.append(process.results[process.finished + 1])
        process.adopted = False
        self.happened["finished"] += 1
        self._expect(process)
        number = process.finished - 1
        for ids in self._views[self._epoch].replicas:
            for other in (self._processes[m] for m in ids):
                if other.alive and other.state and other.finished > number and other.applied[number] != process.applied[number]:
                    raise Wrong(f"{member} has applied {process.applied[number]}, {other.id} {other.applied[number]}")

    # --- results and state of others -----------------------------------------------------------------------------------

    def _adopt(self, index: int) -> None:
        epoch, adopter, donor = self._donations.pop(index)
        process, giver = self._processes[adopter], self._processes[donor]
        if not process.acts or process.epoch != epoch or not giver.alive:
            return
        call = self._views[epoch].plan.call
        if call not in giver.results:
            raise Wrong(f"{donor} has the result of call {call} no more, but {adopter} needs it")
        process.results, process.adopted = {call: giver.results[call]}, True
        self._tell(process, call)
        self.happened["adopted"] += 1

    def _load(self, index: int) -> None:
        epoch, member = self._loads[index]
        process, plan = self._processes[member], self._views[epoch].plan
        if not process.acts or process.epoch != epoch:
            del self._loads[index]
            return
        like = [self._processes[m] for m in plan.holders if self._processes[m].part.shard == process.part.shard]
        donors = [p for p in like if p.acts and p.epoch == epoch and p.finished == plan.call]
        if not donors:
            if not any(p.alive for p in like):
                del self._loads[index]
            return
        del self._loads[index]
        process.applied, process.loaded = list(self._random.choice(donors).applied), True
        self._tell(process, plan.call)
        self.happened["loads"] += 1

    def _have(self, member: str) -> None:
        """All of its replica have loaded: from now on it can give the state."""
        process = self._processes[member]
        process.loaded, process.state = False, True
        self._expect(process)

    # --- what is promised ----------------------------------------------------------------------------------------------

    def _judge(self, plan: ShardPlan | None = None) -> None:
        """All whole replicas that have the state have applied the same averages, as far as they have come; and each average of
        all shards is over one set of replicas.
        """
        view = self._views[self._epoch]
        members = [self._processes[m] for m in (view.plan.holders if plan is None else plan.holders)]
        if not self.lost and plan is None:
            members = [p for p in members if p.alive]
        longest = max((p.applied for p in members), key=len, default=[])
        for process in members:
            if process.applied != longest[: process.finished]:
                raise Wrong(f"{process.id} has applied {process.applied}, another {longest}")
            if process.finished < len(longest) - 1:
                raise Wrong(f"{process.id} is {len(longest) - process.finished} calls behind: {self._places()}")
        if plan is not None:
            kept = [p.results[plan.call] for p in members if plan.call in p.results and p.finished == plan.call - 1]
            right = next((p.applied[-1] for p in members if p.finished == plan.call and p.applied), None)
            if right is not None and any(average != right for average in kept):
                raise Wrong(f"kept {kept} of call {plan.call}, others have applied {right}")

    def _places(self) -> str:
        return ", ".join(
            f"{p.id}: {p.finished} in {p.epoch}{' frozen' if p.frozen else ''}{'' if p.state else ' blank'}"
            for p in self._live()
        )
