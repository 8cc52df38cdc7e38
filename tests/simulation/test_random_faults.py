"""Random histories: a safety phase with every fault, then a healed network on which the survivors must agree again."""

from __future__ import annotations

from random import Random

import pytest

from consensus.simulation import World

from .judgement import judge, living

SEEDS = 150


def misbehave(world: World, rng: Random, size: int) -> None:
    """One random fault (or its end)."""
    hosts = living(world)
    choice = rng.randrange(10)
    if choice <= 1 and len(hosts) > 1:
        for host in rng.sample(hosts, min(len(hosts) - 1, rng.choice([1, 1, 1, 2]))):
            world.kill(host)
    elif choice == 2:
        world.pause(rng.choice(hosts))
    elif choice == 3:
        for host in hosts:
            if host.paused:
                world.resume(host)
    elif choice == 4 and len(world.hosts) < size + 4:
        names = tuple(h.name for h in hosts[:3])
        world.start(f"j{len(world.hosts)}", introducers=names)
    elif choice == 5:
        world.faults.loss = rng.choice([0.0, 0.05, 0.3])
        world.faults.duplication = rng.choice([0.0, 0.1])
        world.faults.reordering = rng.choice([0.0, 0.1])
    elif choice == 6 and len(hosts) > 2:
        side = rng.sample(hosts, rng.randrange(1, len(hosts)))
        world.isolate(side, [host for host in hosts if host not in side])
    elif choice == 7 and len(hosts) > 1:
        one, other = rng.sample(hosts, 2)
        world.faults.cut.add((one.id, other.id))
    elif choice == 8:
        world.faults.heal()
    elif choice == 9:
        victim = rng.choice(hosts)
        if victim.running:
            world.inside(victim, lambda: victim.machine.leave(None, world.now))


def history(seed: int) -> World:
    rng = Random(seed)
    size = rng.choice([1, 2, 3, 4, 5, 8])
    world = World(seed, fences=rng.random() < 0.3)
    world.cluster(size)
    for _ in range(rng.randrange(3, 12)):
        misbehave(world, rng, size)
        world.run(rng.choice([0.003, 0.01, 0.02, 0.3, 1.0, 2.5]))
        if not living(world):
            break
    world.faults.heal()
    for host in living(world):
        if host.paused:
            world.resume(host)
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_survivors_agree_after_any_history(seed: int) -> None:
    judge(history(seed))


def test_same_seed_same_trace() -> None:
    assert history(7).trace == history(7).trace
