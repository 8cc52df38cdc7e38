"""Two clusters of one job: what makes them impossible, and what happens where somebody made them possible."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from consensus.config import Config, Policy
from consensus.errors import FoundedApartError, OvertakenError
from consensus.progress import Progress
from consensus.protocol.state.inputs import Introduced
from consensus.simulation import Host, World, judged, living
from tests.transcripts.script import agree

SEEDS = 12


def apart(world: World, first: int, second: int) -> tuple[list[Host], list[Host]]:
    """Two groups that were given different introducers, and do not see each other."""
    groups: list[list[Host]] = []
    for letter, size in (("a", first), ("b", second)):
        world.config = replace(world.config, initial_size=size)
        group = [world.start(f"{letter}{index}", introducers=(f"{letter}0",)) for index in range(size)]
        for others in groups:
            world.isolate(group, others)
        agree(world, group)
        groups.append(group)
    return groups[0], groups[1]


def meet(world: World, one: Host, other: Host) -> None:
    """Somebody tells a member of one cluster where to find the other."""
    world.faults.heal()
    world.inside(one, lambda: one.machine.handle(Introduced((other.machine.member.address,)), world.now))


@pytest.mark.parametrize("told", [0, 2])
def test_one_of_two_clusters_stops_and_says_why(told: int) -> None:
    world = judged(World(1))
    small, large = apart(world, 3, 4)
    meet(world, small[told], large[told])
    if told:  # only coordinators look around
        world.run(2.0)
        assert not any(host.stopped for host in small + large)
        joiner = world.start("j", introducers=(small[1].name, large[2].name))
    took = world.run_until(lambda: all(host.stopped is not None for host in small), 2.0)
    assert took < 1.0
    world.run(5.0)
    assert all(host.running for host in large)
    error = small[0].stopped
    assert isinstance(error, FoundedApartError)
    assert error.view is not None and error.view.cluster == large[0].activated[-1].cluster
    text = str(error)
    assert "same introducers" in text and "initial_size above half" in text and "job 'default'" in text
    assert str(small[1].activated[-1]) in text and str(error.view) in text
    if told:
        agree(world, [*large, joiner])


def test_steps_count_more_than_members() -> None:
    world = judged(World(1))
    small, large = apart(world, 1, 3)
    small[0].machine.set_progress(Progress(5, 0))
    meet(world, small[0], large[0])
    world.run_until(lambda: all(host.stopped is not None for host in large), 2.0)
    assert small[0].running


def test_under_any_the_loser_may_come_back() -> None:
    world = judged(World(1, Config(policy=Policy.ANY)))
    small, large = apart(world, 2, 3)
    meet(world, small[0], large[0])
    world.run_until(lambda: all(host.stopped is not None for host in small), 2.0)
    assert all(isinstance(host.stopped, OvertakenError) for host in small)


def test_a_member_of_both_ends_up_in_one() -> None:
    """Two founders with lists of their own count the same member: it follows whoever told it first, and they meet."""
    world = judged(World(1, Config(initial_size=2)))
    a, b = world.start("a", introducers=("a",)), world.start("b", introducers=("b",))
    world.faults.cut_both(a.id, b.id)
    shared = world.start("s", introducers=("a", "b"))
    world.run(5.0)
    assert len(living(world)) == 2 and shared.running
    agree(world, living(world))
    assert sum(isinstance(host.stopped, FoundedApartError) for host in (a, b)) == 1


def founding(seed: int, *, voted: bool, enough: bool = True) -> tuple[World, dict[str, Host]]:
    """Members come up, links are cut and healed, and founders are killed and started again, all while they found.

    A member that is started again is one more member: of ``lifetimes`` in all, ``initial_size`` is more than half (``enough``).
    """
    rng = Random(seed)
    size, restarts = rng.choice([3, 4, 5, 7]), rng.randrange(3)
    lifetimes = size + restarts
    initial = min(size, lifetimes // 2 + 1) if enough else size // 2
    world = judged(World(seed, Config(initial_size=initial, join_timeout=1000.0)))
    names = [f"m{index}" for index in range(size)]
    ports = {name: 1000 + index for index, name in enumerate(names)}
    everyone = tuple(("10.0.0.1", port) for port in ports.values())
    slots: dict[str, Host] = {}

    def start(name: str) -> None:
        if voted:
            some = tuple(each for each in everyone if each[1] == ports[name] or rng.random() < 0.7)
            slots[name] = world.start(name, port=ports[name], resolved=some)
        else:
            slots[name] = world.start(name, port=ports[name], resolved=None, introducers=("m0",))
            host = slots[name]
            others = everyone[1:] if name != "m0" else everyone
            world.inside(host, lambda: host.machine.handle(Introduced(others), world.now))

    order = names if not voted else rng.sample(names, size)
    for name in order:
        start(name)
        world.run(rng.choice([0.0, 0.01, 0.1]))
    for _ in range(rng.randrange(4, 12)):
        hosts = list(slots.values())
        choice = rng.randrange(5)
        if choice <= 1:
            side = rng.sample(hosts, rng.randrange(1, size))
            world.isolate(side, [host for host in hosts if host not in side])
        elif choice == 2:
            world.faults.heal()
            world.faults.loss = rng.choice([0.0, 0.2, 0.5])
        elif restarts:
            restarts -= 1
            founded = [host for host in hosts if host.machine.view is not None]
            victim = rng.choice(founded) if voted and founded else slots["m0"]
            world.kill(victim)
            world.run(rng.choice([0.0, 0.01, 0.7]))
            start(victim.name)
        world.run(rng.choice([0.002, 0.01, 0.05, 0.3, 0.7, 2.5]))
    return world, slots


def founded(world: World) -> set[str]:
    """The clusters in which anybody ever acted."""
    return {view.cluster for host in world.hosts.values() for view in host.activated}


def test_with_less_there_may_be_two_until_they_meet() -> None:
    """So the test below can fail."""
    worlds = [founding(seed, voted=True, enough=False)[0] for seed in (14, 28)]
    assert any(len(founded(world)) > 1 for world in worlds)
    for world in worlds:
        world.faults.heal()
        everyone = tuple(sorted(host.machine.member.address for host in living(world)))
        for host in living(world):
            world.resolve(host, everyone)
        world.run(5.0)
        assert len({host.activated[-1].cluster for host in living(world) if host.activated}) <= 1


@pytest.mark.parametrize("voted", [False, True])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_with_an_initial_size_above_half_there_is_one_cluster(seed: int, voted: bool) -> None:
    world, slots = founding(seed, voted=voted)
    world.faults.heal()
    if voted:
        everyone = tuple(sorted(host.machine.member.address for host in slots.values()))
        for host in slots.values():
            world.resolve(host, everyone)
    world.run(15.0)
    assert len(founded(world)) <= 1, list(world.hosts.values())
