"""Machines together: join, leave, restart, the boundary handshake, replays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from consensus.border import Boundary, Hint, Leave, SeekAdmission
from consensus.config import Config
from consensus.errors import LeftError
from consensus.messages import (
    Accept,
    Chosen,
    Install,
    Message,
)
from consensus.progress import Progress
from consensus.protocol.state.effects import Fence
from consensus.simulation import Host, World
from consensus.view import Cause, Proposal, Removal

from ..transcripts.script import agree, epochs, seniority, start_job
from .people import machine_in


def test_join() -> None:
    world, members = start_job(3)
    joiner = world.start("j", introducers=(members[1].name,))
    agree(world, [*members, joiner])
    assert seniority(world) == [*members, joiner]
    assert set(joiner.installed[-1][1]) == {host.id for host in members}


def test_a_joiner_that_does_not_seek_admission_only_looks() -> None:
    world, members = start_job(2)
    joiner = world.start("j", introducers=(members[0].name,), wants=False)
    world.run(5.0)
    assert epochs(members) == [1, 1]
    assert joiner.machine.known_view == members[0].machine.view
    world.inside(joiner, lambda: joiner.machine.handle(SeekAdmission(), world.now))
    agree(world, [*members, joiner])


def test_not_more_joiners_than_members_kept() -> None:
    world, members = start_job(2)
    joiners = [world.start(f"j{i}", introducers=(members[0].name,)) for i in range(5)]
    agree(world, [*members, *joiners], 10.0)
    sizes = [len(view) for view in members[0].activated]
    assert all(after <= 2 * before for before, after in pairwise(sizes)), sizes


def leave(world: World, host: Host) -> None:
    world.inside(host, lambda: host.machine.handle(Leave(None), world.now))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_leave(index: int) -> None:
    world, members = start_job(3)
    leaver = members[index]
    others = [host for host in members if host is not leaver]
    leave(world, leaver)
    assert agree(world, others) < 0.5
    world.run_until(lambda: leaver.stopped is not None, 1.0)
    assert isinstance(leaver.stopped, LeftError)
    assert epochs(others) == [2, 2]


def test_everybody_leaves() -> None:
    world, members = start_job(4)
    for host in members:
        leave(world, host)
    world.run_until(lambda: all(host.stopped is not None for host in members), 12.0)
    assert all(isinstance(host.stopped, LeftError) for host in members)


def test_the_last_one_just_goes() -> None:
    world, [only] = start_job(1)
    leave(world, only)
    assert isinstance(only.stopped, LeftError)


def test_the_others_die_while_the_coordinator_leaves() -> None:
    """Found by this suite: a leaving driver of a view whose members are all dead must not wait for them."""
    world, members = start_job(3)
    leaver = members[0]

    def watch(host: Host, message: Message) -> bool:
        if isinstance(message, Install):
            for other in members[1:]:
                if other.alive:
                    world.kill(other)
        return True

    world.watch = watch
    leave(world, leaver)
    world.run_until(lambda: leaver.stopped is not None, 5.0)
    assert isinstance(leaver.stopped, LeftError)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_restart_at_the_same_address_is_proof(index: int) -> None:
    """Nobody held a connection to the old lifetime, and nothing refuses: its successor answers for it."""
    world, members = start_job(3)
    for host in members:
        host.liveness_connections = ()
    victim = members[index]
    others = [host for host in members if host is not victim]
    world.kill(victim)
    again = world.start("again", introducers=(others[0].name,), port=victim.machine.member.port, wants=False)
    assert agree(world, others) < 1.5, "long before silence would tell"
    assert again.stopped is None


def waiting_joiner(config: Config | None = None) -> tuple[World, list[Host], Host]:
    world, members = start_job(3, config=config)
    for host in members:
        host.machine.set_progress(Progress(16, 0))
    joiner = world.start("j", introducers=(members[0].name,))
    world.run_until(lambda: members[0].boundary_requested, 1.0)
    return world, members, joiner


def test_a_join_waits_for_the_coordinators_next_call_and_freezes_after_it() -> None:
    world, members, joiner = waiting_joiner()
    assert not any(host.boundary_requested for host in members[1:]), "only the coordinator is asked"
    world.run(0.5)
    assert epochs(members) == [1] * 3
    seen: list[Message] = []
    world.watch = lambda _, message: seen.append(message) or True  # type: ignore[func-returns-value]
    for host in members:
        world.inside(host, lambda host=host: host.machine.handle(Boundary(17, ()), world.now))  # type: ignore[misc]
    assert agree(world, [*members, joiner]) < 0.1
    assert {message.after_call for message in seen if isinstance(message, Accept)} == {17}
    assert not members[0].boundary_requested, "the request is over"


def test_a_join_freezes_at_once_after_boundary_wait() -> None:
    world, members, joiner = waiting_joiner(Config(boundary_wait=0.7))
    since = world.now
    agree(world, [*members, joiner])
    assert 0.7 <= world.now - since < 0.9


def test_a_join_before_the_first_call_interrupts_nothing_and_waits_for_nothing() -> None:
    world, members = start_job(3, config=Config(boundary_wait=30.0))
    joiner = world.start("j", introducers=(members[0].name,))
    assert agree(world, [*members, joiner]) < 0.3


def test_the_boundary_request_is_dropped_when_the_joiner_is_gone() -> None:
    world, members, joiner = waiting_joiner(Config(boundary_wait=30.0))
    world.kill(joiner)
    world.run(3.0)
    assert not members[0].boundary_requested
    assert epochs(members) == [1] * 3


@pytest.mark.parametrize("index", [0, 1, 2])
def test_leavers_told_by_the_trailer_go_without_a_request(index: int) -> None:
    world, members = start_job(3)
    leaver = members[index]
    others = [host for host in members if host is not leaver]
    for host in members:
        world.inside(host, lambda host=host: host.machine.handle(Boundary(5, (leaver.id,)), world.now))  # type: ignore[misc]
    assert agree(world, others) < 0.1
    world.run_until(lambda: leaver.stopped is not None, 1.0)
    assert isinstance(leaver.stopped, LeftError)


def test_a_hint_of_the_data_plane_gives_a_new_epoch_with_the_same_members() -> None:
    world, members = start_job(3)
    world.inside(members[1], lambda: members[1].machine.handle(Hint((members[2].id,)), world.now))
    agree(world, members)
    world.run_until(lambda: epochs(members) == [2, 2, 2], 2.0)
    assert members[0].activated[-1].ids == members[0].activated[0].ids


def recorded(run: Callable[[World, list[Host]], None]) -> tuple[World, list[Host], list[tuple[Host, Message]]]:
    world, members = start_job(4)
    seen: list[tuple[Host, Message]] = []

    def watch(host: Host, message: Message) -> bool:
        seen.append((host, message))
        return True

    world.watch = watch
    run(world, members)
    world.watch = None
    return world, members, seen


def crash_and_join(world: World, members: list[Host]) -> None:
    world.kill(members[3])
    joiner = world.start("j", introducers=(members[0].name,))
    agree(world, [*members[:3], joiner])
    world.run(1.0)


def test_replayed_messages_change_nothing() -> None:
    world, members, seen = recorded(crash_and_join)
    before = [host.machine.view for host in members[:3]]
    for sender, message in seen:
        for host in members[:3]:
            if host is not sender:
                at = sender.machine.member.address
                world.inside(host, lambda h=host, s=sender, m=message, a=at: h.machine.receive(s.id, a, m, world.now))  # type: ignore[misc]
    world.run(5.0)
    assert [host.machine.view for host in members[:3]] == before
    assert not any(host.machine.changing for host in members[:3])


def test_everything_twice_and_out_of_order_ends_the_same() -> None:
    world, members = start_job(4)
    world.faults.duplication = 1.0
    world.faults.reordering, world.faults.late = 0.5, 0.05
    crash_and_join(world, members)
    assert all(not host.machine.changing for host in members[:3])


def test_a_hung_member_is_fenced_again_until_it_is_dead() -> None:
    machine = machine_in("abc", "b")
    peer = machine._core.table.get("c")
    assert peer is not None
    assert peer.member.fact("supervisor") is None
    now = 100.0
    while now < 103.0:
        now += 0.05
        machine.tick(now)
    assert not [effect for effect in machine.drain() if isinstance(effect, Fence)], "nobody to ask"


def test_the_last_leaver_goes_even_if_the_leaving_driver_of_its_view_died() -> None:
    """Found by hypothesis: nobody would ever have activated the view that it waited for."""
    world, members = start_job(2)
    driver, last = members

    def watch(host: Host, message: Message) -> bool:
        if host is driver and isinstance(message, Install):
            world.kill(driver)
            world.inside(last, lambda: last.machine.receive(driver.id, driver.machine.member.address, told, world.now))
            return False
        return True

    view = Proposal(members[0].activated[0].view_id, 2, (Removal(driver.id, Cause.LEFT),)).apply(members[0].activated[0])
    told = Chosen(view, driver.id)
    world.watch = watch
    leave(world, last)
    leave(world, driver)
    world.run_until(lambda: last.stopped is not None, 5.0)
    assert isinstance(last.stopped, LeftError)
