"""Who founds where introducers are names: votes by the table, and random lookups in a simulated network."""

from __future__ import annotations

from random import Random

import pytest

from consensus.config import Config
from consensus.errors import JoinError
from consensus.member import Address, Member
from consensus.messages import JoinReply, JoinRequest, Vote
from consensus.protocol.admission.founding import GRACE, Founding
from consensus.protocol.machine import Machine
from consensus.protocol.state.inputs import Resolved
from consensus.protocol.state.join import Applicants
from consensus.simulation import World, judged
from consensus.simulation.world.faults import Faults

from .people import member, sends, view_of

A, B, C = member("a"), member("b"), member("c")


def ports(*numbers: int) -> tuple[Address, ...]:
    return tuple(("10.0.0.1", number) for number in numbers)


def test_the_first_in_its_own_list_is_a_candidate_and_votes_for_itself() -> None:
    one = Founding(A)
    assert one.consider(A.address, True, Applicants(9), 0.0)
    assert one.vote == Vote("a", 1, 1)
    assert not one.consider(A.address, True, Applicants(9), 0.1)


def test_others_vote_for_the_first_of_their_list_once_it_is_a_candidate() -> None:
    one, met = Founding(B), Applicants(9)
    met.received(A, False, 0.0, Vote("", 0, 0))
    assert not one.consider(A.address, False, met, 0.0), "it does not run"
    met.received(C, False, 0.0, Vote("c", 1, 1))
    assert not one.consider(A.address, False, met, 0.0), "that is not whom the list says"
    late = Founding(B)
    met.received(C, False, 1.0, Vote("c", 1, 1))
    assert late.consider(A.address, False, met, 1.0) and late.candidate == C, "but better than nobody, after a while"
    met.received(A, False, 0.1, Vote("a", 1, 1))
    assert one.consider(A.address, False, met, 0.1)
    assert one.vote == Vote("a", 1, 1)


def test_for_a_second_a_candidate_waits_for_the_first_of_its_list() -> None:
    one, met = Founding(B, 100.0), Applicants(9)
    met.received(C, False, 100.0, Vote("c", 1, 1))
    assert not one.consider(A.address, False, met, 100.0)
    met.received(C, False, 100.9, Vote("c", 1, 1))
    assert not one.consider(A.address, False, met, 100.9)
    met.received(C, False, 101.1, Vote("c", 1, 1))
    assert one.consider(A.address, False, met, 101.1) and one.candidate == C


@pytest.mark.parametrize("order", [(A, B), (B, A)], ids=["a first", "b first"])
def test_of_several_candidates_that_no_list_names_first_the_lowest_address_gets_the_vote(order: tuple[Member, ...]) -> None:
    """In whatever order they were met: so the votes of many meet at one of them."""
    one, met = Founding(C), Applicants(9)
    for each in order:
        met.received(each, False, 1.0, Vote(each.id, 1, 1))
    assert one.consider(None, False, met, 1.0) and one.candidate == A


def test_a_vote_is_kept_until_its_candidate_gives_up() -> None:
    one, met = Founding(C), Applicants(9)
    met.received(B, False, 0.0, Vote("b", 1, 1))
    assert one.consider(B.address, False, met, 0.0)
    met.received(A, False, 1.0, Vote("a", 1, 1))
    assert not one.consider(A.address, False, met, 1.0), "its list shows another first, but the vote is given"
    met.expire(100.0)
    met.received(A, False, 100.0, Vote("a", 1, 1))
    assert not one.consider(A.address, False, met, 100.0), "silence is no proof: it may have founded"
    met.received(B, False, 101.0, Vote("a", 1, 2))
    met.received(A, False, 101.0, Vote("a", 1, 1))
    assert one.consider(A.address, False, met, 101.0)
    assert one.candidate == A


def test_votes_for_an_older_candidacy_do_not_count_and_older_packets_change_nothing() -> None:
    one, met = Founding(A), Applicants(9)
    one.consider(A.address, True, met, 0.0)
    met.received(B, False, 0.0, Vote("a", 1, 1))
    assert one.supporters(met, 0.0) == [B]
    one.consider(C.address, False, met, 0.1)  # another is first now: this one gives up ...
    assert one.supporters(met, 0.1) == []
    one.consider(A.address, True, met, 0.2)  # ... and runs again
    assert one.vote == Vote("a", 3, 3)
    assert one.supporters(met, 0.2) == [], "B may have voted for another meanwhile"
    met.received(B, False, 0.3, Vote("a", 3, 5))
    met.received(B, False, 0.3, Vote("c", 1, 4))
    assert one.supporters(met, 0.3) == [B]


def test_a_dead_candidate_frees_its_voters_after_a_grace() -> None:
    one, met = Founding(C), Applicants(9)
    met.received(A, False, 0.0, Vote("a", 1, 1))
    one.consider(A.address, False, met, 0.0)
    assert one.to_check(met, 0.9) is None
    assert one.to_check(met, 1.0) == A
    assert one.to_check(met, 1.2) is None, "asked a moment ago"
    one.died("a", 1.2)
    met.received(B, False, 1.3, Vote("b", 1, 1))
    assert not one.consider(B.address, False, met, 1.3)
    met.received(B, False, 1.2 + GRACE, Vote("b", 1, 1))
    assert one.consider(B.address, False, met, 1.2 + GRACE)


def test_who_has_voted_for_another_does_not_found_though_it_is_first_now() -> None:
    config = Config(initial_size=1, introducers=("workers:1",))
    machine = Machine(config, C, Random(1), founder=False, introducers=(B.address,), voted=True)
    machine.start(0.0)
    machine.receive(B.id, B.address, JoinRequest(B, False, config.terms, Vote(B.id, 1, 1)), 0.1)
    machine.handle(Resolved((C.address, B.address), True, ""), 0.2)
    machine.receive(B.id, B.address, JoinReply(None, None), 0.3)
    for tenth in range(4, 30):
        machine.tick(tenth / 10)
    assert machine.known_view is None, "B may have founded"
    machine.receive(B.id, B.address, JoinRequest(B, False, config.terms, Vote("", 0, 2)), 3.0)
    machine.tick(3.1)
    assert machine.known_view is not None


def settle(world: World, count: int) -> set[str]:
    """The ids of the epoch 1 views that were ever active, once all running members are in one view."""
    running = [host for host in world.hosts.values() if host.running]

    def together() -> bool:
        return all(host.activated and len(host.activated[-1]) == count for host in running)

    world.run_until(together, 30.0)
    return {host.activated[-1].view_id for host in running}


@pytest.mark.parametrize("seed", range(40))
def test_lookups_that_differ_make_one_cluster(seed: int) -> None:
    """Five members come up one after the other; each lookup shows some of those that are up, at different times."""
    rng = Random(seed)
    world = judged(World(seed, Config(initial_size=3)))
    world.faults = Faults(loss=rng.choice([0.0, 0.3]), latency=(0.001, rng.choice([0.005, 0.3])))
    everyone = ports(1000, 1001, 1002, 1003, 1004)
    order = list(everyone)
    rng.shuffle(order)
    hosts = []

    def lookup(own: Address, up: list[Address]) -> tuple[Address, ...]:
        return tuple(sorted({own, *(each for each in up if rng.random() < 0.6)}))

    for index, own in enumerate(order):
        hosts.append(world.start(f"m{index}", port=own[1], resolved=lookup(own, order[: index + 1])))
        for _ in range(rng.randrange(3)):
            world.run(rng.choice([0.0, 0.05, 0.4, 1.0]))
            some = rng.choice(hosts)
            if some.machine.view is None:
                world.resolve(some, lookup(some.machine.member.address, order[: index + 1]))
    for _ in range(3):  # in the end every lookup shows everybody
        for host in hosts:
            world.resolve(host, everyone)
        world.run(1.0)
    world.faults.loss = 0.0
    assert len(settle(world, 5)) == 1
    assert len({host.installed[0][0].view_id for host in hosts if host.installed[0][0].epoch == 1}) == 1


def test_two_that_each_see_only_themselves_do_not_found_without_a_third() -> None:
    world = judged(World(1, Config(initial_size=2, join_timeout=3.0)))
    one, two = world.start("a", port=1, resolved=ports(1)), world.start("b", port=2, resolved=ports(2))
    world.run(4.0)
    assert isinstance(one.stopped, JoinError) and isinstance(two.stopped, JoinError)


def test_a_candidate_that_dies_is_replaced() -> None:
    world = judged(World(1, Config(initial_size=2)))
    first = world.start("a", port=1, resolved=ports(1, 2, 3))
    second = world.start("b", port=2, resolved=ports(1, 2, 3))
    world.watch = lambda host, message: host is not first or type(message).__name__ == "JoinRequest"
    world.run(0.05)  # voted for the first, which founds and dies before anybody hears of it
    world.kill(first)
    world.watch = None
    world.start("c", port=3, resolved=ports(1, 2, 3))
    world.run(0.5)
    assert not second.activated
    for host in [host for host in world.hosts.values() if host.running]:
        world.resolve(host, ports(2, 3))
    assert len(settle(world, 2)) == 1


def test_a_death_is_nothing_to_who_has_voted_for_nobody_or_for_another() -> None:
    founding, applicants = Founding(member("b")), Applicants(8)
    founding.died("c", 1.0)
    assert founding.vote == Vote("", 0, 0)
    founding.consider(member("b").address, True, applicants, 1.1)
    assert founding.candidate == member("b")
    founding.died("c", 1.2)
    assert founding.candidate == member("b")


def searching(*introducers: Address) -> Machine:
    machine = Machine(Config(initial_size=3), A, Random(1), founder=False, introducers=introducers, voted=True)
    machine.start(100.0)
    machine.drain()
    return machine


def test_whoever_was_heard_is_asked_though_it_only_looks() -> None:
    """Its list may be shorter than this one, so that it would ask nobody."""
    machine = searching(*ports(7))
    machine.receive(B.id, B.address, JoinRequest(B, False, machine._core.config.terms, Vote("", 0, 0)), 100.1)
    machine.drain()
    machine.tick(101.0)
    assert {send.address for send in sends(machine.drain(), JoinRequest)} == {*ports(7), B.address}


def test_who_looks_tells_others_of_the_cluster_and_whom_to_ask_there() -> None:
    machine = searching(*ports(7))
    request = JoinRequest(B, False, machine._core.config.terms, Vote("", 0, 0))
    machine.receive(B.id, B.address, request, 100.1)
    assert [send.message for send in sends(machine.drain(), JoinReply)] == [JoinReply(None, None)]
    view = view_of("cd")
    machine.receive("c", C.address, JoinReply(view, C, None, view.view_id, view.epoch), 100.2)
    machine.drain()
    machine.receive(B.id, B.address, request, 100.3)
    assert [send.message for send in sends(machine.drain(), JoinReply)] == [JoinReply(view, C, None, view.view_id, view.epoch)]
