"""Jobs that live by leases in a shared store: starting, stopping, a store that is away, broken links, orphans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.config import Config, Liveness, Policy
from consensus.errors import ExcludedError, JoinError
from consensus.progress import Progress
from consensus.simulation import Host, World, judged
from consensus.simulation.world.store import Character

CONFIG = Config(policy=Policy.STORAGE, storage="file:///dir", liveness=Liveness.LEASES, lease=2.0)
QUIET = 10.0
"""Seconds after which a new view's members ping each other no more."""


def job(size: int, seed: int = 1, config: Config = CONFIG, store: Character = Character.ATOMIC) -> tuple[World, list[Host]]:
    """A job that has done its first steps, in seniority order."""
    world = judged(World(seed, config, store=store))
    together(world, world.founders(size, alone=True))
    for host in world.hosts.values():
        host.machine.set_progress(Progress(6, 0))
    world.run(QUIET)
    first = next(iter(world.hosts.values())).activated[-1]
    return world, [world.hosts[key] for key in first.ids]


def together(world: World, hosts: list[Host], seconds: float = 30.0) -> float:
    """Until all are in one active view; how long that took."""
    ids = {host.id for host in hosts}
    return world.run_until(lambda: all(host.activated and set(host.activated[-1].ids) == ids for host in hosts), seconds)


def operations(world: World) -> int:
    assert world.store_requests is not None
    return sum(store.operations for store in world.store_requests.operations.values())


def leases(world: World) -> set[str]:
    """Whose leases are in the store."""
    assert world.store_requests is not None
    return {key.removeprefix("leases/") for key in world.store_requests.contents.names("leases/")}


# Starting


@pytest.mark.parametrize("store", list(Character))
def test_sixteen_at_once_without_any_introducer(store: Character) -> None:
    world = judged(World(1, CONFIG, store=store))
    assert together(world, world.founders(16, alone=True)) <= 1.0


def test_sixteen_that_come_one_by_one() -> None:
    world = judged(World(1, replace(CONFIG, initial_size=16)))
    hosts = []
    for index in range(16):
        hosts.append(world.start(f"m{index}"))
        world.run(2.0 * world.rng.random() / 8)
    assert together(world, hosts) <= 1.0


def test_a_slow_store_delays_the_start_and_no_more() -> None:
    world = judged(World(1, CONFIG))
    world.faults.store.slow = 0.3
    assert together(world, world.founders(16, alone=True)) <= 5.0


def test_a_founder_that_dies_on_the_way_is_replaced() -> None:
    world = judged(World(1, CONFIG))
    hosts = world.founders(4, alone=True)
    first = min(hosts, key=lambda host: host.id)
    world.run(0.006)
    world.kill(first)
    rest = [host for host in hosts if host is not first]
    if not any(host.activated for host in rest):  # four are waited for
        rest.append(world.start("late"))
    assert together(world, rest) <= 3.0


@pytest.mark.parametrize("size", [2, 16])
def test_a_job_is_restarted_on_the_leases_of_the_dead(size: int) -> None:
    """At the same addresses, so that another lifetime answers where the dead are looked for."""
    world, hosts = job(size)
    for host in hosts:
        world.kill(host)
    new = [world.start(f"n{index}", port=host.member.port) for index, host in enumerate(hosts)]
    assert together(world, new) <= 2.0
    assert new[0].activated[-1].epoch == hosts[0].activated[-1].epoch + 1, "the numbers go on"


def test_a_job_whose_hosts_vanished_is_founded_anew() -> None:
    world, hosts = job(4)
    new = [world.start(f"n{index}") for index in range(4)]
    world.isolate(hosts, new)
    for host in hosts:
        world.kill(host)
    assert 2 * CONFIG.lease <= together(world, new) <= 3 * CONFIG.lease


def test_a_job_that_lives_out_of_reach_is_left_alone() -> None:
    world, hosts = job(3)
    world.config = replace(world.config, initial_size=1, join_timeout=20.0)
    new = world.start("new", resolved=())
    world.isolate(hosts, [new])
    world.run(30.0)
    assert isinstance(new.stopped, JoinError) and "newest record in the store" in str(new.stopped)
    assert all(len(host.activated) == 1 and host.stopped is None for host in hosts)


def test_a_job_that_sleeps_is_left_alone() -> None:
    """All its members are stopped, as a scheduler or a laptop does, and one that was restarted meanwhile looks for it."""
    world, hosts = job(3)
    world.config = replace(world.config, initial_size=1, join_timeout=60.0)
    for host in hosts:
        world.pause(host)
    world.run(1.0)
    new = world.start("new")
    world.run(20.0)
    assert new.stopped is None and new.activated == [], "it founded another job over one that sleeps"
    for host in hosts:
        world.resume(host)
    assert together(world, [*hosts, new]) <= 5.0


def test_who_comes_later_joins_by_the_record() -> None:
    world, hosts = job(4)
    new = world.start("new")
    assert together(world, [*hosts, new]) <= CONFIG.boundary_wait + 0.2


# Stopping


@pytest.mark.parametrize("seed", range(4))
def test_a_stopped_member_is_out_in_time(seed: int) -> None:
    world, hosts = job(4, seed)
    world.run(world.rng.random())
    victim = hosts.pop(seed % 4)
    world.pause(victim)
    took = together(world, hosts)
    assert CONFIG.lease - CONFIG.lease / 3 <= took <= 3.3
    world.resume(victim)
    world.run(6.0)
    assert isinstance(victim.stopped, ExcludedError)


def test_two_neighbours_stop_and_nobody_watched_the_second() -> None:
    world, hosts = job(4)
    world.pause(hosts[1])
    world.pause(hosts[2])
    assert together(world, [hosts[0], hosts[3]]) <= 7.0


def test_a_killed_member_is_out_at_once_and_its_lease_is_withdrawn() -> None:
    world, hosts = job(4)
    victim = hosts.pop(0)
    world.kill(victim)
    assert together(world, hosts) <= 0.1
    world.run(2.0)
    assert leases(world) == {host.id for host in hosts}


def test_a_leaver_withdraws_its_lease() -> None:
    world, hosts = job(3)
    leaver = hosts.pop()
    world.inside(leaver, leaver.leave)
    together(world, hosts)
    world.run(0.5)
    assert leases(world) == {host.id for host in hosts}


# The store


@pytest.mark.parametrize("refuses", [0.0, 1.0])
def test_a_store_that_is_away_excludes_nobody_and_is_not_stormed(refuses: float) -> None:
    world, hosts = job(8)
    world.faults.store.away, world.faults.store.refuses = True, refuses
    messages, asked = world.messages, operations(world)
    world.run(15.0)
    assert all(len(host.activated) == 1 and host.stopped is None for host in hosts)
    assert (world.messages - messages) / 8 / 15.0 <= 2 * 3 * 1.5 + 1.0, "pings of three, a beat each, and their acks"
    assert (operations(world) - asked) / 8 / 15.0 <= 7.0
    world.faults.store.away = False
    world.run(10.0)
    messages = world.messages
    world.run(10.0)
    assert (world.messages - messages) / 8 / 10.0 <= 1.0
    world.kill(hosts.pop())
    assert together(world, hosts) <= 0.1


def test_who_lost_only_the_store_stays() -> None:
    world, hosts = job(4)
    world.faults.store.cut.add(hosts[2].id)
    world.run(30.0)
    assert all(len(host.activated) == 1 and host.stopped is None for host in hosts)


@pytest.mark.parametrize("size", [2, 5])
def test_what_an_idle_member_costs(size: int) -> None:
    world, _ = job(size)
    before = operations(world)
    world.run(40.0)
    assert (operations(world) - before) / size / 40.0 <= 3 + size / 2


# Links and calls


def test_a_broken_link_matters_once_the_data_plane_fails() -> None:
    world, hosts = job(4)
    world.faults.cut_both(hosts[1].id, hosts[2].id)
    world.run(30.0)
    assert all(len(host.activated) == 1 for host in hosts)
    world.inside(hosts[1], lambda: hosts[1].fail((hosts[2].id,)))
    took = together(world, [hosts[0], hosts[1], hosts[3]])
    assert CONFIG.link_timeout <= took <= CONFIG.link_timeout + 3.0


def test_a_broken_link_is_found_by_a_call_that_does_not_end() -> None:
    world, hosts = job(4)
    world.faults.cut_both(hosts[1].id, hosts[2].id)
    for host in hosts:
        host.machine.set_progress(Progress(6, 7, host.now))
    together(world, [hosts[0], hosts[1], hosts[3]], 2.0 + CONFIG.link_timeout + 3.0)


def test_who_hangs_steps_aside() -> None:
    world, [hung, *others] = job(4, config=replace(CONFIG, stall_timeout=4.0))
    for host in others:
        host.machine.set_progress(Progress(6, 7, host.now))
    took = together(world, others)
    assert 4.0 < took < 6.0
    assert isinstance(hung.stopped, ExcludedError) and "call 7" in str(hung.stopped)


def test_nobody_hangs_in_a_long_call() -> None:
    world, hosts = job(4, config=replace(CONFIG, stall_timeout=4.0))
    for host in hosts:
        host.machine.set_progress(Progress(6, 7, host.now))
    world.run(15.0)
    assert all(len(host.activated) == 1 and host.stopped is None for host in hosts)
