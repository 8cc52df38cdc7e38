"""Crashes: of one, of many at once, of the coordinator at every message that it sends, down to the last member."""

from __future__ import annotations

import pytest

from consensus.border import Hint
from consensus.errors import ExcludedError
from consensus.messages import Accept, Accepted, Activate, Chosen, FlushRequest, Install, Message, Prepare, Promise
from consensus.simulation import Host, World

from .script import agree, epochs, seniority, start_job


def test_one_crash_is_one_change_within_milliseconds() -> None:
    world, members = start_job(5)
    world.kill(members[3])
    survivors = [host for host in members if host.alive]
    assert agree(world, survivors) < 0.05
    assert epochs(survivors) == [2, 2, 2, 2]
    assert all(set(host.installed[-1][1]) == {h.id for h in survivors} for host in survivors), "everybody's report"


def test_survivors_keep_their_order() -> None:
    world, members = start_job(5)
    world.kill(members[1])
    agree(world, [host for host in members if host.alive])
    assert seniority(world) == [members[0], *members[2:]]


def test_ten_crashes_at_once_are_one_change() -> None:
    """As in training: the data plane breaks everywhere, so everybody checks everybody."""
    world, members = start_job(21)
    for victim in members[5:15]:
        world.kill(victim)
    survivors = [host for host in members if host.alive]
    for host in survivors:
        world.inside(host, lambda host=host: host.machine.handle(Hint(()), world.now))  # type: ignore[misc]
    agree(world, survivors)
    assert epochs(survivors) == [2] * 11
    world.run(5.0)
    assert epochs(survivors) == [2] * 11, "nothing moves afterwards"


def test_ten_neighbours_crash_while_no_data_moves() -> None:
    """Only connections tell then, each three successors: the dead are found in a few steps, within milliseconds."""
    world, members = start_job(21)
    for victim in members[5:15]:
        world.kill(victim)
    assert agree(world, [host for host in members if host.alive]) < 0.2


@pytest.mark.parametrize("by_seniority", [True, False])
def test_a_job_shrinks_from_five_to_one(by_seniority: bool) -> None:
    world, members = start_job(5)
    order = members[:-1] if by_seniority else members[:0:-1]
    for victim in order:
        world.run(1.0)
        world.kill(victim)
        agree(world, [host for host in members if host.alive])
    [last] = [host for host in members if host.alive]
    assert last.activated[-1].epoch == 5
    assert last.activated[-1].ids == (last.id,)


def test_all_but_one_crash_at_once() -> None:
    world, members = start_job(5)
    for victim in members[:4]:
        world.kill(victim)
    agree(world, members[4:])
    assert members[4].activated[-1].epoch == 2


def test_the_last_answer_awaited_dies() -> None:
    """Found by this suite: whoever is proven dead while a ballot waits for it alone must not block it for ever."""
    world, members = start_job(5)
    dead: list[Host] = []

    def die_instead_of_voting(host: Host, message: Message) -> bool:
        if isinstance(message, Accepted) and host in members[1:4]:
            dead.append(host)
            world.kill(host)
            return False
        return True

    world.watch = die_instead_of_voting
    world.kill(members[4])
    agree(world, members[:1])
    assert dead == members[1:4] or len(dead) == 3


VIEW_CHANGE = (Prepare, Promise, Accept, Accepted, FlushRequest, Install, Activate, Chosen)


def crash_at(size: int, index: int, *, seed: int = 1) -> bool:
    """A junior crashes, then the coordinator at its message number ``index`` of the change; False: it sent fewer."""
    world, members = start_job(size, seed=seed)
    sent = 0

    def watch(host: Host, message: Message) -> bool:
        nonlocal sent
        if host is members[0] and isinstance(message, VIEW_CHANGE):
            if sent == index:
                world.kill(host)
                return False
            sent += 1
        return True

    world.watch = watch
    world.kill(members[-1])
    world.run_until(lambda: not members[0].alive, 0.5, expect=False)
    crashed = not members[0].alive
    survivors = [host for host in members if host.alive]
    agree(world, survivors, 12.0)
    world.run(1.0)
    assert len(set(epochs(survivors))) == 1
    return crashed


@pytest.mark.parametrize("size", [3, 5])
def test_the_coordinator_crashes_at_each_message_of_a_change(size: int) -> None:
    index = 0
    while crash_at(size, index):
        index += 1
    assert index >= 3 * (size - 2), "ACCEPT, INSTALL and ACTIVATE to each other survivor"


@pytest.mark.parametrize("size", [3, 5])
def test_the_second_coordinator_crashes_at_each_message_too(size: int) -> None:
    """It takes over with PREPARE, and dies as well; n = 3 leaves one."""
    for index in range(4 * size):
        world, members = start_job(size)
        sent = 0

        def watch(host: Host, message: Message) -> bool:
            nonlocal sent
            if host is members[1] and isinstance(message, VIEW_CHANGE):  # noqa: B023
                if sent == index:  # noqa: B023
                    world.kill(host)  # noqa: B023
                    return False
                sent += 1
            return True

        world.watch = watch
        world.kill(members[0])
        world.run_until(lambda: not members[1].alive, 0.5, expect=False)  # noqa: B023
        agree(world, [host for host in members if host.alive], 12.0)
        if members[1].alive:
            break
    else:
        raise AssertionError("it never got through")


def test_a_join_during_a_crash() -> None:
    world, members = start_job(3)
    joiner = world.start("j", introducers=(members[0].name, members[1].name))
    world.run(0.3)
    world.kill(members[2])
    agree(world, [*members[:2], joiner])
    assert seniority(world) == [*members[:2], joiner], "joiners come last"


def test_the_coordinator_crashes_while_somebody_joins() -> None:
    world, members = start_job(3)
    joiner = world.start("j", introducers=(members[0].name, members[1].name))
    world.run(0.3)
    world.kill(members[0])
    agree(world, [*members[1:], joiner])


def test_a_joiner_crashes_once_admitted() -> None:
    world, members = start_job(3)
    joiner = world.start("j", introducers=(members[0].name,))
    world.run_until(lambda: any(len(host.installed) > 1 for host in members), 5.0)
    world.kill(joiner)
    agree(world, members)


def test_a_short_pause_excludes_nobody() -> None:
    world, members = start_job(4)
    world.pause(members[2])
    world.run(1.5)
    world.resume(members[2])
    world.run(5.0)
    assert epochs(members) == [1] * 4
    assert all(not host.machine.changing for host in members)


def test_a_long_pause_excludes_and_the_sleeper_learns_it() -> None:
    world, members = start_job(4)
    world.pause(members[0])
    others = members[1:]
    assert agree(world, others) < 3.5
    world.resume(members[0])
    world.run_until(lambda: members[0].stopped is not None, 2.0)
    assert isinstance(members[0].stopped, ExcludedError)
    assert epochs(members) == [1, 2, 2, 2]


def test_a_hung_member_is_fenced_before_silence_would_exclude_it() -> None:
    world, members = start_job(3, fences=True)
    world.pause(members[1])
    took = agree(world, [members[0], members[2]])
    assert took < 2.0
    assert not members[1].alive


def test_a_fault_free_job_never_moves() -> None:
    world, members = start_job(8)
    world.faults.loss = 0.05
    world.run(30.0)
    assert epochs(members) == [1] * 8


def world_after(seed: int) -> World:
    world, members = start_job(5, seed=seed)
    world.kill(members[0])
    world.run(2.0)
    return world


def test_a_transcript_is_repeatable() -> None:
    assert world_after(5).trace == world_after(5).trace
