"""How tests begin and end a history: in the package's own words, and some of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from consensus.simulation import Host, World, judged
from consensus.simulation import judge as verdict


def begun(seed: int, *sizes: int, settled: float = 0.6) -> tuple[Random, World, list[Host]]:
    """Luck, a world with checkers and a job in it that acts, of one of these sizes."""
    rng, world = Random(seed), judged(World(seed))
    hosts = world.cluster(rng.choice(sizes) if len(sizes) > 1 else sizes[0])
    world.run(settled)
    return rng, world, hosts


def end(world: World, hosts: Iterable[Host]) -> None:
    """SIGKILL to all of these."""
    for host in hosts:
        world.kill(host)


def judge(world: World, seconds: float = 30.0) -> None:
    """Heal everything, wait, and expect agreement or a legitimate block."""
    found = verdict(world, seconds)
    assert found.good, found
