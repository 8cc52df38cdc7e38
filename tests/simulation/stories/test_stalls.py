"""Training threads that hang, hosts that sleep, agents that are woken late."""

from __future__ import annotations

import pytest

from consensus.config import Config
from consensus.errors import ExcludedError
from consensus.progress import Progress
from consensus.simulation import Host, World, judged
from tests.transcripts.script import seniority

CONFIG = Config(stall_timeout=3.0)


def job(size: int, seed: int = 1) -> tuple[World, list[Host]]:
    world = judged(World(seed, CONFIG))
    hosts = world.cluster(size)
    for host in hosts:
        host.machine.set_progress(Progress(6, 0))
    world.run(2.0)
    return world, hosts


def enter(world: World, *hosts: Host) -> None:
    for host in hosts:
        host.machine.set_progress(Progress(6, 7, world.now))


def size(host: Host) -> int:
    view = host.machine.active_view
    assert view is not None
    return len(view)


def test_who_hangs_steps_aside_on_time() -> None:
    world, [hung, *others] = job(4)
    enter(world, *others)
    took = world.run_until(lambda: all(size(host) == 3 for host in others), 10.0)
    assert 3.0 < took < 3.1  # the peers' pings told how long they had been waiting
    assert isinstance(hung.stopped, ExcludedError)
    assert "call 7" in str(hung.stopped)


def test_who_does_inner_steps_does_not_hang() -> None:
    """Until it does none for so long: that is counted from its last one."""
    world, [alone, *others] = job(4)
    enter(world, *others)
    for inner in range(1, 11):
        alone.machine.set_progress(Progress(6, 0, world.now, inner=inner))
        world.run(2.0)
    assert alone.stopped is None
    took = world.run_until(lambda: all(size(host) == 3 for host in others), 10.0)
    assert 1.0 < took < 1.1
    assert isinstance(alone.stopped, ExcludedError)


@pytest.mark.parametrize(("held_up", "awake"), [(0.3, 0.7), (0.7, 0.3), (1.4, 0.7)])
def test_who_hangs_is_found_though_its_agent_is_often_held_up(held_up: float, awake: float) -> None:
    """A busy machine. Only the time in which the agent was held up does not count."""
    world, [hung, *others] = job(4)
    began = world.now
    enter(world, *others)
    while hung.stopped is None and world.now < began + 30.0:
        world.pause(hung)
        world.run(held_up)
        world.resume(hung)
        world.run_until(lambda: hung.stopped is not None, awake, expect=False)
    took = world.now - began
    assert isinstance(hung.stopped, ExcludedError)
    assert "stalled" in str(hung.stopped)
    assert 3.0 < took < 3.0 * (held_up + awake) / awake + 1.5


def test_of_two_one_suffices() -> None:
    world, [hung, other] = job(2)
    enter(world, other)
    world.run_until(lambda: size(other) == 1, 4.0)
    assert isinstance(hung.stopped, ExcludedError)


def test_two_of_four_hang() -> None:
    world, hosts = job(4)
    enter(world, *hosts[:2])
    world.run_until(lambda: all(size(host) == 2 for host in hosts[:2]), 5.0)


def test_a_single_fast_one_declares_nobody_hung() -> None:
    world, hosts = job(4)
    enter(world, hosts[0])
    world.run(30.0)
    assert all(size(host) == 4 and host.stopped is None for host in hosts)


def test_coming_late_is_in_time() -> None:
    world, [slow, *others] = job(3)
    enter(world, *others)
    world.run(2.9)
    enter(world, slow)
    world.run(10.0)
    assert all(size(host) == 3 for host in [slow, *others])


def test_a_long_call_is_no_stall() -> None:
    world, hosts = job(3)
    enter(world, *hosts)
    world.run(60.0)
    assert all(size(host) == 3 for host in hosts)


def test_loading_before_the_first_call_is_no_stall() -> None:
    world = judged(World(1, CONFIG))
    [loading, *others] = world.cluster(3)
    for host in others:
        host.machine.set_progress(Progress(0, 1, world.now))
    world.run(30.0)
    assert all(size(host) == 3 for host in [loading, *others])


def test_work_between_calls_is_no_stall() -> None:
    world, hosts = job(3)
    world.run(60.0)
    assert all(size(host) == 3 for host in hosts)


@pytest.mark.parametrize("in_call", [0, 2])
def test_several_hosts_that_sleep_together_wake_up_together(in_call: int) -> None:
    """A laptop: nobody has heard anybody for an hour, and nobody is blamed for it, or for a call not entered."""
    world, hosts = job(3)
    enter(world, *hosts[:in_call])
    world.run(0.6)  # a ping tells the third that it is waited for
    for host in hosts:
        world.pause(host)
    world.run(3600.0)
    for host in hosts:
        world.resume(host)
    world.run(2.5)
    enter(world, *hosts[in_call:])
    world.run(10.0)
    assert all(size(host) == 3 and host.stopped is None for host in hosts)
    assert all(any(kind == "late" for _, kind, _ in host.notes) for host in hosts)


def test_an_agent_that_is_held_up_now_and_then_blames_nobody() -> None:
    world, [late, *others] = job(4)
    for _ in range(20):
        world.pause(late)
        world.run(1.4)
        world.resume(late)
        world.run(0.7)
    assert all(size(host) == 4 for host in [late, *others])


def test_who_was_asleep_alone_learns_that_the_others_went_on() -> None:
    world, [late, *others] = job(4)
    world.pause(late)
    world.run(10.0)
    assert all(size(host) == 3 for host in others)
    world.resume(late)
    world.run_until(lambda: late.stopped is not None, 5.0)
    assert isinstance(late.stopped, ExcludedError)


@pytest.mark.parametrize("seconds", [4.0, 6.0, 20.0])
def test_hosts_that_were_suspended_together_exclude_nobody(seconds: float) -> None:
    """Their pings were under way then, and the answers are lost: as they wake, they have heard nobody for so long."""
    world = judged(World(1, Config()))
    hosts = world.cluster(3)
    world.run(2.0)
    *asleep, awake = seniority(world)
    probers = [host.machine._detection._prober for host in asleep]
    world.run_until(lambda: not any(prober.probes for prober in probers), 5.0)
    world.run_until(lambda: all(prober.probes for prober in probers), 5.0)
    for host in asleep:
        for other in hosts:
            if other is not host:
                world.faults.cut_both(host.id, other.id)
        world.pause(host)
    world.run(seconds)
    world.faults.cut.clear()
    for host in asleep:
        world.resume(host)
    world.run(20.0)
    assert [size(host) for host in hosts] == [3, 3, 3]
    assert awake.stopped is None
