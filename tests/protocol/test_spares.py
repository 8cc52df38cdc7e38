"""Joiners above ``max_size``: they wait, known to whoever may coordinate next, and step in with the same view change."""

from __future__ import annotations

from random import Random

import pytest

from consensus.border import Leave
from consensus.config import Config
from consensus.messages import JoinRequest, Ping
from consensus.protocol.state.join import Applicants
from consensus.simulation import Host, World, judged

from ..transcripts.script import agree, seniority
from .people import machine_in, member, sends


def full(members: int, spares: int, *, seed: int = 1, max_size: int | None = None) -> tuple[World, list[Host], list[Host]]:
    """A job at its ``max_size``, members in seniority order, and spares that came one after the other."""
    world = judged(World(seed, Config(max_size=max_size or members)))
    world.cluster(members)
    order = seniority(world)
    waiting = []
    for index in range(spares):
        waiting.append(world.start(f"s{index}", introducers=tuple(host.name for host in order[:3])))
        world.run(0.3)
    return world, order, waiting


def listed(host: Host) -> list[str]:
    return [spare["id"] for spare in host.machine.status()["spares"]]


def test_spares_wait_and_are_shown_in_the_order_of_their_coming() -> None:
    world, order, spares = full(4, 3)
    world.run(3.0)
    assert all(host.activated[-1].epoch == 1 and len(host.activated[-1]) == 4 for host in order)
    for host in order[:3]:
        assert listed(host) == [spare.id for spare in spares], "the coordinator and the next two know them"
    assert listed(order[3]) == []
    assert not order[0].machine.applicants_waiting, "nobody is to be admitted at the next boundary"
    assert not any(host.boundary_requested for host in order)
    assert all(spare.running and spare.machine.known_view == order[0].activated[-1] for spare in spares)
    shown = order[0].machine.status()["spares"][0]
    assert shown["address"] == f"10.0.0.1:{spares[0].machine.member.port}"


@pytest.mark.parametrize("victim", [0, 1, 3])
def test_one_view_removes_the_dead_and_promotes_whoever_has_waited_longest(victim: int) -> None:
    """0: the coordinator itself; the next one knows the spares already."""
    world, order, spares = full(4, 3)
    world.run(1.0)
    world.kill(order[victim])
    rest = [host for host in order if host is not order[victim]]
    assert agree(world, [*rest, spares[0]]) < 0.1
    assert all(host.activated[-1].epoch == 2 for host in rest), "one view, not two"
    world.run(2.0)
    assert [host.activated[-1].epoch for host in rest] == [2, 2, 2]
    new = seniority(world)
    assert listed(new[0]) == [spares[1].id, spares[2].id]


def test_several_deaths_promote_several_spares_but_no_more_than_stay() -> None:
    world, order, spares = full(5, 4)
    world.run(1.0)
    for victim in order[1:4]:
        world.kill(victim)
    agree(world, [order[0], order[4], *spares[:3]])
    assert order[0].activated[1].epoch == 2 and len(order[0].activated[1]) == 4, "two stay, so two may come with them"
    assert order[0].activated[-1].epoch == 3


def test_the_order_survives_one_coordinator_after_the_other() -> None:
    world, order, spares = full(3, 4)
    world.run(1.0)
    inside = list(order)
    for spare in spares:
        world.kill(inside.pop(0))
        inside.append(spare)
        took = agree(world, inside)
        assert took < 0.1
        assert inside[0].activated[-1].ids == tuple(host.id for host in inside)
        world.run(0.7)
    assert inside[0].activated[-1].epoch == 1 + len(spares)


def test_a_spare_that_is_gone_is_not_promoted() -> None:
    world, order, spares = full(3, 2)
    world.run(1.0)
    world.kill(spares[0])
    world.run(2.0)
    world.kill(order[2])
    agree(world, [order[0], order[1], spares[1]])


def test_who_leaves_makes_room_in_the_same_view() -> None:
    world, order, spares = full(3, 1)
    world.run(1.0)
    world.inside(order[1], lambda: order[1].machine.handle(Leave(None), world.now))
    agree(world, [order[0], order[2], spares[0]])
    assert order[0].activated[-1].epoch == 2


@pytest.mark.parametrize("seed", range(6))
def test_the_view_stays_full_while_members_and_spares_come_and_go(seed: int) -> None:
    rng = Random(seed)
    world, order, spares = full(4, 3, seed=seed)
    inside, outside = list(order), list(spares)
    for _ in range(8):
        world.run(rng.uniform(0.6, 1.2))
        if rng.random() < 0.6:
            victim = inside.pop(rng.randrange(len(inside)))
            world.kill(victim)
            inside.append(outside.pop(0))
            before = inside[0].activated[-1].epoch
            agree(world, inside)
            assert inside[0].activated[-1].epoch == before + 1
        if len(outside) < 2:
            names = tuple(host.name for host in inside)
            outside.append(world.start(f"x{len(world.hosts)}", introducers=names))
        assert len(inside[0].activated[-1]) == 4


def test_waiting_time_is_the_applicants_own_word_and_never_grows_shorter() -> None:
    waiting = Applicants(9)
    waiting.received(member("b"), True, 100.0, waited=5.0)
    waiting.received(member("c"), True, 100.1, waited=9.0)
    waiting.received(member("d"), False, 90.0)
    waiting.received(member("d"), True, 100.2, waited=0.0)
    assert [each.member.id for each in waiting.fresh(100.3, wanting=True)] == ["c", "b", "d"]
    waiting.received(member("b"), True, 100.3, waited=5.25)
    assert [each.member.id for each in waiting.fresh(100.3, wanting=True)] == ["c", "b", "d"]


def test_waiting_time_is_told_in_milliseconds() -> None:
    """Who asks later, and has waited longer by a millisecond, comes first."""
    machine, terms = machine_in("abc", "a"), machine_in("abc", "a")._core.config.terms
    for name, waited, now in (("x", 0, 100.0), ("y", 1401, 101.4), ("z", 1399, 101.4)):
        machine.receive(name, member(name).address, JoinRequest(member(name), True, terms, waited=waited), now)
    assert [spare["id"] for spare in machine.status()["spares"]] == ["y", "x", "z"]


def test_only_whoever_may_coordinate_next_keeps_a_queue() -> None:
    for own, known in (("a", 1), ("b", 1), ("c", 1), ("d", 0)):
        machine = machine_in("abcd", own)
        joiner = member("x", 77)
        machine.receive("x", joiner.address, JoinRequest(joiner, True, machine._core.config.terms, waited=1500), 100.1)
        assert len(machine.status()["spares"]) == known


@pytest.mark.parametrize("wants", [True, False])
@pytest.mark.parametrize("own", ["a", "b", "d"])
def test_only_who_wants_to_come_in_is_pinged_and_by_those_who_may_let_it_in(own: str, wants: bool) -> None:
    machine, joiner, pinged = machine_in("abcd", own), member("x", 77), 0
    machine.receive("x", joiner.address, JoinRequest(joiner, wants, machine._core.config.terms), 100.0)
    machine.drain()
    for step in range(1, 10):  # before the others seem silent
        machine.tick(100.0 + 0.1 * step)
        pinged += sum(send.message.target == "x" for send in sends(machine.drain(), Ping))  # type: ignore[attr-defined]
    assert (pinged > 0) is (wants and own != "d")


def test_a_change_that_removes_nobody_lets_no_spare_in() -> None:
    world, order, spares = full(3, 1)
    world.run(1.0)
    world.inside(order[0], lambda: order[0].fail(()))
    world.run_until(lambda: all(host.activated[-1].epoch == 2 for host in order), 5.0)
    assert {len(host.activated[-1]) for host in order} == {3} and not spares[0].activated
