"""Members that missed something: a decision, a whole history. They catch up, or learn that they are out."""

from __future__ import annotations

from random import Random

import pytest

from consensus.config import Config, Policy
from consensus.errors import ExcludedError
from consensus.member import Address
from consensus.messages import Accept, Activate, Chosen, FlushRequest, Install, Introduction, Message, Pull
from consensus.protocol.state.inputs import Introduced
from consensus.simulation import Host, World, judged, living

from .script import agree, epochs, start_job

MISSED = [(Accept,), (Accept, FlushRequest, Chosen), (Install,), (Activate,), (Accept, Install, Activate)]


@pytest.mark.parametrize("kinds", MISSED)
def test_who_missed_part_of_a_view_change_catches_up(kinds: tuple[type, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    world, members = start_job(4)
    dead, late = members[1], members[3]

    honest, until = late.machine.receive, world.now + 1.5

    def receive(sender: str, address: Address, message: Message, now: float) -> None:
        if now >= until or not isinstance(message, kinds):
            honest(sender, address, message, now)

    monkeypatch.setattr(late.machine, "receive", receive)
    world.kill(dead)
    others = [members[0], members[2], late]
    took = agree(world, others)
    assert took < 1.5 + 0.6
    assert epochs(others) == [2, 2, 2]


def test_who_was_cut_off_while_a_joiner_came_catches_up() -> None:
    """Shorter than T_excl: it stays a member, though it heard nothing of the change."""
    world, members = start_job(4)
    late = members[3]
    joiner = world.start("j", introducers=(members[0].name,))
    world.run(0.95)
    world.isolate([late], [*members[:3], joiner])
    world.run(1.5)
    world.faults.heal()
    agree(world, [*members, joiner])


def replaced(world: World, members: list[Host], sleeper: Host, *, same_places: bool) -> list[Host]:
    """While ``sleeper`` is away all others are replaced, one after the other."""
    others = [host for host in members if host is not sleeper]
    agree(world, others)
    for old in list(others):
        port = old.machine.member.port if same_places else None
        if same_places:
            others.remove(old)
            world.kill(old)
            agree(world, others) if others else world.run(0.5)
        names = tuple(host.name for host in others)
        new = world.start(f"{old.name}'", introducers=names, port=port)
        others.append(new)
        agree(world, others)
        if not same_places:
            others.remove(old)
            world.kill(old)
            agree(world, others)
        world.run(1.0)
    return others


@pytest.mark.parametrize("policy", [Policy.MAJORITY, Policy.ANY])
@pytest.mark.parametrize("asleep", [True, False])
@pytest.mark.parametrize("same_places", [True, False])
def test_of_those_it_knew_nobody_lives(same_places: bool, asleep: bool, policy: Policy) -> None:
    """It finds the job through an introducer: at an address where it knew another lifetime, or one that it never knew."""
    world, members = start_job(4, config=Config(policy=policy))
    away = members[3]
    if asleep:
        world.pause(away)
    else:
        world.isolate([away], members[:3])
    others = replaced(world, members, away, same_places=same_places)
    if not same_places:
        away.machine.handle(Introduced((others[1].machine.member.address,)), world.now)
    if asleep:
        world.resume(away)
    else:
        world.faults.heal()
    took = world.run_until(lambda: away.stopped is not None, 10.0)
    assert isinstance(away.stopped, ExcludedError)
    assert took < 2.5
    world.run(3.0)
    assert all(host.running for host in others)


@pytest.mark.parametrize("seed", range(15))
def test_the_excluded_learn_it_whatever_happened_meanwhile(seed: int) -> None:
    """Some are away (cut off, or asleep); the rest shrinks, grows, and is replaced; messages get lost, before and after."""
    rng = Random(seed)
    world = judged(World(seed))
    size = rng.choice([3, 4, 5, 8])
    members = world.cluster(size)
    world.run(1.0)
    away = rng.sample(members, rng.randrange(1, (size - 1) // 2 + 1))
    rest = [host for host in members if host not in away]
    sleeping = [host for host in away if rng.random() < 0.5]
    for host in sleeping:
        world.pause(host)
    world.isolate([host for host in away if host not in sleeping], rest)
    agree(world, rest, 10.0)
    first = world.start("first", introducers=(rest[0].name,))
    for host in away:
        world.faults.cut_both(first.id, host.id)
    rest.append(first)
    agree(world, rest, 10.0)
    for host in away:  # an introducer of theirs that will live
        host.machine.handle(Introduced((first.machine.member.address,)), world.now)
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.5 and len(rest) > 2:
            victim = rng.choice([host for host in rest if host is not first])
            rest.remove(victim)
            world.kill(victim)
        else:
            new = world.start(f"n{len(world.hosts)}", introducers=("first",))
            for host in away:
                world.faults.cut_both(new.id, host.id)
            rest.append(new)
        agree(world, rest, 10.0)
        world.run(rng.choice([0.0, 0.5]))
    world.faults.heal()
    world.faults.loss = rng.choice([0.0, 0.2, 0.5])
    for host in sleeping:
        world.resume(host)
    took = world.run_until(lambda: all(host.stopped is not None for host in away), 30.0)
    assert all(isinstance(host.stopped, ExcludedError) for host in away)
    assert took < (10.0 if world.faults.loss else 2.5)
    assert all(host in living(world) for host in rest)


def unaware(*, loss: bool) -> tuple[World, Host, Host]:
    """A, B go on without X, and let J in; X hears their acks again, but (``loss``) not what they say; A and B die."""
    world, members = start_job(3)
    a, b, x = members
    world.isolate([a, b], [x])
    agree(world, [a, b])
    j = world.start("j", introducers=(a.name, b.name))
    agree(world, [a, b, j])
    world.run(1.0)
    world.faults.heal()
    world.faults.cut_both(j.id, x.id)
    if loss:
        world.watch = lambda _, message: not isinstance(message, (Chosen, Pull, Introduction))
    world.run(0.6)
    world.kill(a)
    world.kill(b)
    world.run(5.0)
    return world, x, j


def test_an_ack_from_a_newer_view_is_no_contact() -> None:
    """Found by this suite: X discounted A and B, whose acks told it that they were ahead, and acted alone beside J."""
    _, x, j = unaware(loss=True)
    assert epochs([x]) == [1], "it blocks: it knows that something went on without it"
    assert j.activated[-1].ids == (j.id,)
    _, x, j = unaware(loss=False)
    assert isinstance(x.stopped, ExcludedError)
