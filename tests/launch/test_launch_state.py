"""The pure part of the director against a model: hosts that come, go and are lost, workers that end in any order.

The world here does what the ledger says, breaks things at random, and knows what really runs: nothing is started twice or on a
host that is not there, every worker is accounted for, and every launch comes to its end once nothing new breaks.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib.launch.director.decisions.actions import Action, BindHost, CallHost, DropHost, FailureKind, StartWorker, StopWorker
from ftlib.launch.director.decisions.hosts import HostPhase, Loss
from ftlib.launch.director.decisions.launch_state import LaunchState, Stage
from ftlib.launch.director.decisions.rules import Rules
from ftlib.launch.run.restarts import WorkerPhase


class World:
    """What really is: agents, sockets, processes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        elastic = self.chance.random() < 0.7
        self.rules = Rules(
            elastic=elastic,
            min_workers=self.chance.randrange(1, 4) if elastic else 1,
            max_restarts=self.chance.randrange(0, 6) if elastic else 0,
            restart_delay=self.chance.choice([0.0, 1.0]),
            patience=60.0,
            moving=self.chance.random() < 0.5,
        )
        self.now = 0.0
        hosts = [(f"h{number}", self.chance.choice([None, 1, 2, 3])) for number in range(self.chance.randrange(1, 5))]
        self.ledger = LaunchState(self.rules, list(hosts), self.now)
        self.called: set[str] = set()
        self.up: set[str] = set()
        self.binding: list[BindHost] = []
        self.running: dict[int, str] = {}
        self.last: dict[int, int] = {}
        self.stopped: set[int] = set()
        self.starts = 0
        self.ports = 1000
        self.bound: dict[str, list[str]] = {}
        """Addresses at which sockets of a host's agent are bound, in their order; not there: it has not answered yet."""
        self.at: dict[str, tuple[str, int]] = {}
        """By address of a founder: at which host it is, and who founds there."""
        self.wanted = {name for name, _ in hosts}
        """Hosts that were not removed, nor are over for good."""
        self.homes: dict[int, tuple[str, int, WorkerPhase]] = {}
        """Where each worker was when last looked at, and how far."""
        self.do(self.ledger.begin(self.now))

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case CallHost(host):
                    assert host not in self.called | self.up, f"{host} is called twice"
                    self.called.add(host)
                case BindHost(host):
                    assert host in self.up, f"sockets at {host}, which is not there"
                    self.binding.append(action)
                    self.bound.pop(host, None)
                case StartWorker(index, start, founder, address, introducers, size):
                    place = self.ledger.places[index]
                    assert index not in self.running, f"worker {index} is started twice"
                    assert place.host in self.up, f"worker {index} is started at {place.host}, which is not there"
                    assert place.host in self.bound, f"worker {index} is started at {place.host}, whose sockets are not bound"
                    assert introducers and size > 0
                    assert founder < 0 or address in introducers
                    self.found(index, founder, address, introducers)
                    assert self.last.get(index, 0) < start, f"start {start} of worker {index} comes twice"
                    self.last[index] = start
                    taken = [self.ledger.places[each].local_rank for each, where in self.running.items() if where == place.host]
                    assert place.local_rank not in taken, f"two workers in slot {place.local_rank} of {place.host}"
                    self.running[index] = place.host
                    self.stopped.discard(index)
                    self.starts += 1
                case StopWorker(index):
                    self.stopped.add(index)
                case DropHost(host):
                    self.drop(host)
        self.check()

    def found(self, index: int, founder: int, address: str, introducers: tuple[str, ...]) -> None:
        """A worker is started: who founds has a socket of its own at its host, and nobody is sent where nobody is."""
        host = self.ledger.places[index].host
        if founder >= 0:
            assert self.bound[host][founder] == address, f"worker {index} gets socket {founder} of {host} for {address}"
            assert address not in self.at, f"worker {index} gets the address of {self.at[address]}"
            self.at[address] = host, index
        elif address:
            assert self.at[address] == (host, index), f"worker {index} at {host} gets the address of {self.at[address]}"
        for each in introducers:
            if each in self.at:
                where, who = self.at[each]
                assert self.ledger.places[who].host == where, f"worker {who} has left {each}, and {index} is sent there"

    def drop(self, host: str) -> None:
        self.called.discard(host)
        self.bound.pop(host, None)
        self.up.discard(host)
        self.binding = [each for each in self.binding if each.host != host]
        for index in [index for index, where in self.running.items() if where == host]:
            del self.running[index]

    def check(self) -> None:
        assert len(self.ledger.places) == len(self.ledger.policy.records)
        for index in self.running:
            assert self.ledger.policy.records[index].phase is WorkerPhase.RUNNING, f"worker {index} runs, and nobody knows"

    def strict(self) -> None:
        """Between two events: what the ledger takes to run does run, and what is over stays as it is."""
        over = (WorkerPhase.DONE, WorkerPhase.FAILED, WorkerPhase.RETIRED)
        for index, place in enumerate(self.ledger.places):
            phase = self.ledger.policy.records[index].phase
            *home, before = self.homes.get(index, (place.host, place.local_rank, phase))
            moved = home != [place.host, place.local_rank]
            assert not (moved and before is phase and phase in over), f"worker {index}, {phase}, has moved from {home}"
            self.homes[index] = place.host, place.local_rank, phase
            assert place.due is None or phase is WorkerPhase.WAITING, f"worker {index}, {phase}, is to be started"
        assert self.ledger.stage is not Stage.ENDING or self.ledger.next_at() is None, "nothing is due any more"
        assert set(self.ledger.running()) == set(self.running)
        lasting = self.rules.elastic and self.ledger.stage not in (Stage.SETTLING, Stage.ENDING)
        for host in self.ledger.hosts.values():
            assert host.phase is not HostPhase.DRAINING or self.ledger.running(), f"{host.name} has drained, and nobody noticed"
            assert host.staying == (host.name in self.wanted) or not lasting, f"{host}, and {self.wanted} are wanted"
            assert (host.name in self.up) == (host.phase in (HostPhase.UP, HostPhase.DRAINING))

    def end(self, index: int, code: int) -> None:
        del self.running[index]
        self.do(self.ledger.ended(index, self.last[index], code, "", self.now, sent_away=index in self.stopped))

    def tick(self) -> None:
        """What is due now is done now: else the director would look again at once, and again, until something happens."""
        self.do(self.ledger.tick(self.now))
        due = self.ledger.next_at()
        assert due is None or due > self.now, f"due at {due}, and it is {self.now}"

    def calm(self) -> bool:
        """One thing that happens without anything breaking; False: nothing is left to happen."""
        if self.called:
            host = min(self.called)
            self.called.discard(host)
            self.up.add(host)
            self.do(self.ledger.host_up(host, 2, "10.0.0.1", self.now))
        elif self.binding:
            request = self.binding.pop(0)
            addresses = [f"10.0.0.1:{self.ports + number}" for number in range(request.founders)]
            self.ports += request.founders
            if all(each.host != request.host for each in self.binding):  # else this answer is out of date
                self.bound[request.host] = addresses
            self.do(self.ledger.host_bound(request.host, request.founding, addresses, self.now))
        elif self.running:
            self.end(next(iter(self.running)), 0)
        elif (due := self.ledger.next_at()) is not None:
            self.now = max(self.now, due)
            self.tick()
        else:
            return False
        return True

    def breaks(self) -> None:
        """Something random."""
        chance, ledger = self.chance, self.ledger
        match chance.randrange(9):
            case 0 if self.running:
                self.end(chance.choice(sorted(self.running)), chance.choice([0, 0, 1, 1, 7, -9, -11]))
            case 1 if self.up | self.called:
                host = chance.choice(sorted(self.up | self.called))
                loss = chance.choice(list(Loss))
                self.drop(host)
                self.wanted -= {host} if loss is Loss.OVER else set()
                self.do(ledger.host_lost(host, "cut off", self.now, loss))
            case 2 if self.rules.elastic:
                host = f"h{chance.randrange(7)}"
                self.wanted.add(host)
                self.do(ledger.add_host(host, chance.choice([None, 1, 2]), self.now))
            case 3 if self.rules.elastic and chance.random() < 0.5:
                host = f"h{chance.randrange(7)}"
                self.wanted.discard(host)
                self.do(ledger.remove_host(host, self.now))
            case 4:
                self.now += chance.choice([0.01, 0.5, 2.0, 400.0])
                self.tick()
            case 5 if self.running:
                index = chance.choice(sorted(self.running))
                member = f"m{index}-{self.ledger.policy.records[index].starts}"
                self.do(ledger.announced(index, self.last[index], member, f"10.0.0.1:{index}", chance.randrange(3), self.now))
            case 6 if self.stopped & set(self.running):
                self.end(min(self.stopped & set(self.running)), chance.choice([0, -15, -9]))
            case 7 if chance.random() < 0.05:
                self.do(ledger.cancel("somebody asks for it"))
            case _:
                self.calm()
        self.strict()


def play(chance: random.Random) -> World:
    world = World(chance)
    world.strict()
    for _ in range(world.chance.randrange(5, 80)):
        if world.ledger.over:
            break
        world.breaks()
    for _ in range(2000):  # nothing breaks any more
        if world.ledger.over:
            break
        if not world.calm():
            break
        world.strict()
    assert world.ledger.over, f"{world.ledger.stage}, {world.ledger.hosts}, {world.ledger.policy.records}"
    assert not world.running
    ends = {record.phase for record in world.ledger.policy.records}
    assert not ends & {WorkerPhase.RUNNING, WorkerPhase.WAITING}, f"{ends}"
    failed = world.ledger.failure
    if not world.rules.elastic and failed is None:
        assert ends == {WorkerPhase.DONE}
    if failed is not None and failed.kind is FailureKind.WORKER:
        assert failed.index >= 0
    return world


@pytest.mark.parametrize("part", range(4))
def test_random_launches(part: int) -> None:
    started = sum(play(random.Random(seed)).starts for seed in range(part * 150, part * 150 + 150))
    assert started > 150


@pytest.mark.soak
def test_ten_thousand_random_launches() -> None:
    for seed in range(10_000):
        play(random.Random(seed))


@given(st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_any_launch(chance: random.Random) -> None:
    """The same, and what fails is made as short as it can be."""
    play(chance)


def test_a_static_launch_starts_only_when_all_are_there_and_ranks_follow_the_list() -> None:
    ledger = LaunchState(Rules(elastic=False), [("a", 1), ("b", 2)], 0.0)
    assert ledger.begin(0.0) == [CallHost("a"), CallHost("b")]
    assert ledger.host_up("b", 9, "10.0.0.2", 0.0) == []
    assert ledger.host_up("a", 9, "10.0.0.1", 0.0) == [BindHost("a", 1, 1, True), BindHost("b", 1, 2, False)]
    assert ledger.host_bound("b", 1, ["10.0.0.2:1", "10.0.0.2:2"], 0.0) == []
    starts = ledger.host_bound("a", 1, ["10.0.0.1:1"], 0.0)
    assert [action.index for action in starts if isinstance(action, StartWorker)] == [0, 1, 2]
    assert [(place.host, place.local_rank, place.rank) for place in ledger.places] == [("a", 0, 0), ("b", 0, 1), ("b", 1, 2)]


def test_the_first_failure_ends_a_static_launch_and_others_are_noted() -> None:
    ledger = LaunchState(Rules(elastic=False), [("a", 3)], 0.0)
    ledger.begin(0.0)
    ledger.host_up("a", 1, "127.0.0.1", 0.0)
    ledger.host_bound("a", 1, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], 0.0)
    assert ledger.ended(1, 1, 1, "", 1.0) == []
    assert ledger.stage is Stage.SETTLING
    assert ledger.ended(2, 1, -9, "", 1.05) == []
    assert ledger.tick(1.2) == [StopWorker(0, 0.0, "another part of the launch failed")]
    ledger.ended(0, 1, -9, "", 1.3, sent_away=True)
    assert ledger.over
    assert [failure.index for failure in ledger.failures] == [1, 2]


def test_a_lost_host_rests_longer_each_time_and_its_workers_wait() -> None:
    ledger = LaunchState(Rules(elastic=True), [("a", 1), ("b", 1)], 0.0)
    ledger.begin(0.0)
    ledger.host_up("a", 1, "10.0.0.1", 0.0)
    ledger.host_up("b", 1, "10.0.0.2", 0.0)
    ledger.host_bound("a", 1, ["10.0.0.1:1"], 0.0)
    ledger.host_bound("b", 1, ["10.0.0.2:1"], 0.0)
    ledger.announced(0, 1, "m0", "10.0.0.1:1", 1, 0.0)
    now, rests = 10.0, []
    for _ in range(10):
        ledger.host_lost("b", "cut off", now)
        due = ledger.next_at()
        assert due is not None
        rests.append(due - now)
        now = due
        assert ledger.tick(now) == [CallHost("b")]
        ledger.host_up("b", 1, "10.0.0.2", now)
        actions = ledger.host_bound("b", 1, [], now)
        assert [action.introducers for action in actions if isinstance(action, StartWorker)] == [("10.0.0.1:1",)]
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]
    ledger.host_lost("b", "cut off", now + 601.0)
    assert ledger.next_at() == now + 602.0


def founded(*hosts: tuple[str, int], **rules: Any) -> LaunchState:
    """An elastic launch that runs, each worker a member of a view."""
    ledger = LaunchState(Rules(elastic=True, **rules), list(hosts), 0.0)
    ledger.begin(0.0)
    for number, (name, slots) in enumerate(hosts):
        ledger.host_up(name, slots, f"10.0.0.{number}", 0.0)
    for number, (name, slots) in enumerate(hosts):
        ledger.host_bound(name, 1, [f"10.0.0.{number}:{port}" for port in range(slots)], 0.0)
    for index, place in enumerate(ledger.places):
        ledger.announced(index, 1, f"m{index}", f"{place.host}:{index}", 1, 0.0)
    return ledger


def started(actions: list[Action]) -> list[int]:
    return [action.index for action in actions if isinstance(action, StartWorker)]


def where(ledger: LaunchState) -> list[tuple[str, int]]:
    return [(place.host, place.local_rank) for place in ledger.places]


def test_workers_of_a_lost_host_start_on_one_that_comes_and_the_lost_one_gets_others() -> None:
    ledger = founded(("a", 1), ("b", 2))
    ledger.host_lost("b", "cut off", 1.0)
    assert ledger.add_host("c", 3, 1.1) == [CallHost("c")]
    ledger.host_up("c", 9, "10.0.0.9", 1.5)
    assert started(ledger.host_bound("c", 1, [], 1.5)) == [1, 2, 3]
    assert where(ledger) == [("a", 0), ("c", 0), ("c", 1), ("c", 2)]
    assert ledger.tick(2.0) == [CallHost("b")]
    ledger.host_up("b", 9, "10.0.0.2", 2.1)
    assert started(ledger.host_bound("b", 1, [], 2.1)) == [4, 5]
    assert where(ledger)[4:] == [("b", 0), ("b", 1)]


def test_the_slot_of_a_worker_that_failed_for_good_is_room() -> None:
    ledger = founded(("a", 2), ("b", 1))
    assert ledger.ended(1, 1, 3, "", 1.0) == []  # no restart is left
    assert started(ledger.host_lost("b", "cut off", 2.0)) == [2]
    assert where(ledger)[2] == ("a", 1)


def test_the_slot_of_a_worker_that_is_stuck_is_none() -> None:
    """Its process may hold the GPU: nobody is started there, whether it was needed or not, and whoever has lost a host."""
    ledger = founded(("a", 3), ("b", 1), max_restarts=5, restart_delay=0.0)
    assert ledger.ended(1, 1, -9, "", 1.0, stuck=True) == []
    assert ledger.ended(2, 1, -9, "", 1.1, sent_away=True, stuck=True) == []
    assert started(ledger.host_lost("b", "cut off", 2.0)) == []
    assert started(ledger.tick(2.5)) == []
    assert ledger.running() == [0]


def test_what_is_said_of_an_earlier_start_changes_nothing() -> None:
    ledger = founded(("a", 2), max_restarts=5, restart_delay=0.0)
    assert started(ledger.ended(0, 1, -9, "", 1.0)) == [0]
    assert ledger.ended(0, 1, -9, "", 1.1) == [] == ledger.announced(0, 1, "m0", "a:0", 7, 1.1)
    record = ledger.policy.records[0]
    assert (record.starts, record.phase, record.epoch) == (2, WorkerPhase.RUNNING, 0)
    assert ledger.ended(0, 2, 0, "", 1.2) == []
    assert record.phase is WorkerPhase.DONE


def test_a_worker_that_asks_for_it_is_started_again() -> None:
    ledger = founded(("a", 2), max_restarts=1, restart_delay=1.0)
    ledger.again(0, 1)
    ledger.ended(0, 1, 0, "", 1.0)
    assert started(ledger.tick(2.0)) == [0]


def test_slots_of_a_host_that_is_there_follow_the_list() -> None:
    ledger = founded(("a", 1), ("b", 2))
    assert started(ledger.add_host("a", 3, 1.0)) == [3, 4]
    assert where(ledger)[3:] == [("a", 1), ("a", 2)]
    assert ledger.add_host("b", 1, 2.0) == [StopWorker(2, 10.0, "its host has fewer slots")]
    assert ledger.add_host("b", 2, 2.1) == []
    assert started(ledger.ended(2, 1, 0, "", 2.2, sent_away=True)) == [2], "it drained, and is wanted again"


def test_a_worker_that_waited_at_a_lost_host_does_not_count_as_one_that_will_run() -> None:
    ledger = founded(("a", 1), ("b", 1), min_workers=2, max_restarts=5, restart_delay=1.0, patience=60.0)
    ledger.ended(1, 1, -9, "", 1.0)
    ledger.host_lost("b", "cut off", 1.5)
    ledger.tick(61.4)
    assert ledger.stage is Stage.RUNNING
    ledger.tick(61.6)
    assert ledger.stage is Stage.ENDING
    assert ledger.failure is not None
    assert (ledger.failure.kind, ledger.failure.host) == (FailureKind.TOO_FEW, "b")


def test_nobody_is_started_where_a_new_founding_has_not_bound_yet() -> None:
    """Not where nobody founds either: workers there would be told addresses that are not known yet."""
    ledger = founded(("a", 1), ("b", 1), ("c", 1), max_restarts=2, restart_delay=1.0)
    ledger.ended(0, 1, -9, "", 1.0)
    ledger.ended(1, 1, -9, "", 1.0)
    ledger.ended(2, 1, -9, "", 1.0)  # no restart is left for it
    assert ledger.tick(2.0) == [BindHost("a", 2, 1, False), BindHost("b", 2, 1, False), BindHost("c", 2, 0, False)]
    ledger.host_bound("a", 2, ["10.0.0.1:9"], 2.1)
    assert started(ledger.host_bound("b", 2, ["10.0.0.2:9"], 2.1)) == [0, 1]
    assert started(ledger.add_host("c", 2, 2.2)) == []
    ledger.announced(0, 2, "m0", "10.0.0.1:9", 1, 2.3)
    assert ledger.stage is Stage.RUNNING
    assert started(ledger.host_bound("c", 2, [], 2.4)) == [3]


def test_who_waits_for_an_event_is_not_looked_at_again_and_again() -> None:
    """The last member of a view dies while a joiner starts: its restart waits for that one's view, however long it is due."""
    ledger = founded(("a", 2), max_restarts=2, restart_delay=1.0)
    ledger.ended(1, 1, -9, "", 1.0)
    assert started(ledger.tick(2.0)) == [1]
    ledger.ended(0, 1, -9, "", 2.5)
    assert ledger.next_at() == 3.5
    assert ledger.tick(3.5) == []
    assert ledger.next_at() is None
    assert started(ledger.announced(1, 2, "m1-2", "10.0.0.1:7", 2, 9.0)) == [0]


def test_a_worker_that_dies_while_others_are_about_to_found_is_started_again() -> None:
    """Both founders lose their hosts before there is a view: the one that comes last founds anew beside the other."""
    ledger = LaunchState(Rules(elastic=True, max_restarts=5, restart_delay=1.0), [("a", 1), ("b", 1)], 0.0)
    ledger.begin(0.0)
    for host in ("a", "b"):
        ledger.host_up(host, 1, "10.0.0.1", 0.0)
    for host in ("a", "b"):
        ledger.host_bound(host, 1, [f"{host}:1"], 0.0)
    for lost, fresh in (("b", "c"), ("a", "d")):
        ledger.host_lost(lost, "cut off", 1.0)
        ledger.add_host(fresh, 1, 1.0)
        ledger.host_up(fresh, 1, "10.0.0.1", 1.0)
        ledger.host_bound(fresh, 1, [], 1.0)
    assert (ledger.stage, ledger.running()) == (Stage.BINDING, [1])
    assert ledger.ended(1, 2, -9, "", 1.5) == []
    assert (ledger.stage, ledger.failures) == (Stage.BINDING, [])
    ledger.host_bound("c", 2, [], 1.6)
    assert started(ledger.host_bound("d", 2, ["d:1"], 1.6)) == [0]
    assert started(ledger.tick(2.5)) == [1]


@pytest.mark.parametrize("moving", [False, True])
def test_a_host_that_refuses_from_the_beginning_ends_a_launch_that_needs_it(moving: bool) -> None:
    ledger = LaunchState(Rules(elastic=True, min_workers=2, patience=60.0, moving=moving), [("a", 1), ("b", 1)], 0.0)
    ledger.begin(0.0)
    ledger.host_up("a", 1, "10.0.0.1", 0.0)
    assert ledger.host_lost("b", "Permission denied", 0.0, Loss.REFUSED) == [DropHost("b")]
    now = 0.0
    while ledger.stage is Stage.GATHERING:
        due = ledger.next_at()
        assert due is not None
        now = due
        if CallHost("b") in ledger.tick(now):
            ledger.host_lost("b", "Permission denied", now, Loss.REFUSED)
    assert ledger.over
    assert ledger.failure is not None
    assert ledger.failure.host == "b" and "Permission denied" in ledger.failure.why
    assert now == (60.0 if moving else 1.0)  # others may come where a file or a command names them


def test_a_host_that_refuses_rests_longer_each_time_where_it_is_not_needed() -> None:
    ledger = LaunchState(Rules(elastic=True), [("a", 1), ("b", 1)], 0.0)
    ledger.begin(0.0)
    ledger.host_up("a", 1, "10.0.0.1", 0.0)
    ledger.host_lost("b", "Permission denied", 0.0, Loss.REFUSED)
    ledger.host_bound("a", 1, ["10.0.0.1:1"], 0.0)
    now, rests = 0.0, []
    for _ in range(10):
        due = ledger.next_at()
        assert due is not None
        rests.append(due - now)
        now = due
        assert ledger.tick(now) == [CallHost("b")]
        ledger.host_lost("b", "Permission denied", now, Loss.REFUSED)
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0]


def test_hosts_that_are_over_for_good_are_not_waited_for() -> None:
    ledger = founded(("a", 1), ("b", 1))
    ledger.host_lost("a", "the step was cancelled", 1.0)
    ledger.host_lost("b", "the step was cancelled", 1.0)
    assert ledger.tick(2.0) == [CallHost("a"), CallHost("b")]
    assert ledger.host_lost("a", "the job has expired", 2.1, Loss.OVER) == [DropHost("a")]
    assert not ledger.over
    ledger.host_lost("b", "the job has expired", 2.2, Loss.OVER)
    assert ledger.over
    assert ledger.failure is not None
    assert (ledger.failure.kind, ledger.failure.host, ledger.failure.why) == (FailureKind.HOST, "b", "the job has expired")


def test_a_list_that_is_empty_at_first_waits_for_hosts() -> None:
    ledger = LaunchState(Rules(elastic=True, moving=True, patience=60.0), [], 0.0)
    assert ledger.begin(0.0) == [] and not ledger.over and ledger.next_at() == 60.0
    ledger.add_host("a", 1, 5.0)
    assert ledger.host_up("a", 1, "10.0.0.1", 5.0) == [BindHost("a", 1, 1, False)]


def test_a_host_that_is_listed_again_while_it_drains_is_called_again_after_that() -> None:
    ledger = founded(("a", 1), ("b", 1))
    assert ledger.remove_host("b", 1.0) == [StopWorker(1, 10.0, "its host was removed")]
    assert ledger.add_host("b", 2, 1.1) == []
    assert ledger.ended(1, 1, 0, "", 1.2, sent_away=True) == [DropHost("b"), CallHost("b")]
    ledger.host_up("b", 9, "10.0.0.2", 1.3)
    assert started(ledger.host_bound("b", 1, [], 1.3)) == [1, 2]


def test_a_host_that_is_lost_while_it_drains_and_is_wanted_again_rests() -> None:
    ledger = founded(("a", 1), ("b", 1))
    ledger.remove_host("b", 1.0)
    ledger.add_host("b", 1, 1.1)
    ledger.host_lost("b", "cut off", 1.2)
    assert ledger.tick(2.2) == [CallHost("b")]
