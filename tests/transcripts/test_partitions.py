"""Partitions: the larger side goes on, the smaller blocks, says who it waits for, and learns what was decided."""

from __future__ import annotations

from consensus.config import Config
from consensus.errors import ExcludedError, QuorumLostError
from consensus.view import Cause

from .script import agree, cut, epochs, start_job


def test_the_minority_blocks_is_excluded_and_learns_it() -> None:
    world, members = start_job(5)
    small, large = members[:2], members[2:]
    world.isolate(small, large)
    assert agree(world, large) < 4.0
    world.run(2.0)
    assert epochs(small) == [1, 1], "it only blocks"
    assert any(host.machine.changing for host in small)
    world.faults.heal()
    world.run_until(lambda: all(host.stopped is not None for host in small), 5.0)
    assert all(isinstance(host.stopped, ExcludedError) for host in small)
    assert epochs(large) == [2, 2, 2]


def test_the_excluded_come_back_as_new_lifetimes() -> None:
    world, members = start_job(3)
    world.isolate(members[:1], members[1:])
    agree(world, members[1:])
    world.faults.heal()
    world.run_until(lambda: members[0].stopped is not None, 5.0)
    world.kill(members[0])
    again = world.start(members[0].name, introducers=(members[1].name,), port=members[0].machine.member.port)
    agree(world, [*members[1:], again])


def test_half_with_the_most_senior_goes_on_and_half_without_blocks() -> None:
    world, members = start_job(4)
    world.isolate(members[:2], members[2:])
    agree(world, members[:2])
    world.run(5.0)
    assert epochs(members) == [2, 2, 1, 1]


def test_a_partition_shorter_than_t_excl_changes_nothing() -> None:
    world, members = start_job(4)
    world.isolate(members[:2], members[2:])
    world.run(1.4)
    world.faults.heal()
    world.run(5.0)
    assert epochs(members) == [1] * 4


def test_three_ways_nobody_has_a_quorum() -> None:
    world, members = start_job(6)
    for one, other in [(0, 2), (0, 4), (2, 4)]:
        world.isolate(members[one : one + 2], members[other : other + 2])
    world.run(8.0)
    assert epochs(members) == [1] * 6
    world.faults.heal()
    agree(world, members)


def test_a_bridge_keeps_everybody_alive() -> None:
    """Halves that hear of each other through one member suspect nobody: its acks are passed on."""
    world, members = start_job(5, config=Config(link_timeout=0.0))
    world.isolate(members[:2], members[3:])
    world.run(8.0)
    assert epochs(members) == [1] * 5


def test_whom_a_bridge_alone_connects_cannot_work_with_the_others() -> None:
    """They live, but no group of all can be built: the most senior stays with those that it reaches."""
    world, members = start_job(5)
    world.isolate(members[:2], members[3:])
    assert agree(world, members[:3]) < 8.5
    world.run_until(lambda: all(host.stopped is not None for host in members[3:]), 5.0)
    causes = {reason.cause for reason in members[0].machine.reasons.values()}
    assert causes == {Cause.SEVERED}


def test_of_two_that_cannot_reach_each_other_the_junior_goes() -> None:
    world, members = start_job(4)
    cut(world, (members[1], members[2]))
    agree(world, [members[0], members[1], members[3]])
    world.run_until(lambda: isinstance(members[2].stopped, ExcludedError), 5.0)


def test_a_link_that_is_broken_one_way_is_broken() -> None:
    world, members = start_job(3)
    world.faults.cut.add((members[2].id, members[1].id))
    agree(world, members[:2])


def test_who_reaches_one_member_only_goes_though_it_is_the_most_senior() -> None:
    """It could not lead, as it reaches no quorum; the next one does."""
    world, members = start_job(5)
    world.isolate(members[:1], members[1:4])
    agree(world, members[1:])


def test_who_lacks_most_goes_first() -> None:
    """The second lacks two members, each of these only him: it is him, and not two others."""
    world, members = start_job(5)
    world.isolate(members[1:2], members[2:4])
    agree(world, [members[0], *members[2:]])


def test_a_link_that_is_mended_in_time_changes_nothing() -> None:
    world, members = start_job(4)
    cut(world, (members[1], members[2]))
    world.run(4.8)
    world.faults.heal()
    world.run(5.0)
    assert epochs(members) == [1] * 4
    assert not any(host.machine.changing for host in members)


def test_one_way_deafness_excludes_the_deaf_alone() -> None:
    world, members = start_job(4)
    deaf = members[3]
    world.faults.cut |= {(host.id, deaf.id) for host in members[:3]}
    agree(world, members[:3])
    world.faults.heal()
    world.run_until(lambda: deaf.stopped is not None, 5.0)


def test_majority_lost_blocks_says_for_whom_and_gives_up() -> None:
    world, members = start_job(5, config=Config(quorum_timeout=30.0))
    world.isolate(members[:2], members[2:])  # without contact, so that the dead cannot be discounted
    world.run(1.9)
    for victim in members[2:]:
        world.kill(victim)
    world.faults.heal()
    world.run(15.0)
    survivors = members[:2]
    assert epochs(survivors) == [1, 1], "blocked"
    blocked = [text for host in survivors for _, kind, text in host.notes if kind == "blocked"]
    assert blocked
    for victim in members[2:]:
        assert any(victim.id[:6] in text and "(dead)" in text for text in blocked)
    world.run_until(lambda: any(host.stopped for host in survivors), 30.0)
    stopped = [host for host in survivors if host.stopped is not None]
    assert all(isinstance(host.stopped, QuorumLostError) for host in stopped)
    assert "quorum_timeout=30 s" in str(stopped[0].stopped)


def test_majority_killed_under_contact_is_discounted() -> None:
    world, members = start_job(5)
    for victim in members[1:4]:
        world.kill(victim)
    agree(world, [members[0], members[4]])


def test_silent_members_cannot_be_discounted_ever() -> None:
    world, members = start_job(2)
    cut(world, (members[0], members[1]))
    world.run(8.0)
    assert epochs(members)[1] == 1, "the junior alone is no quorum"
    assert members[0].activated[-1].ids == (members[0].id,), "the most senior is half with itself"


def test_twenty_seconds_of_flapping() -> None:
    world, members = start_job(4)
    for _ in range(10):
        world.isolate(members[:1], members[1:])
        world.run(1.0)
        world.faults.heal()
        world.run(1.0)
    assert epochs(members) == [1] * 4
