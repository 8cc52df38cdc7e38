"""Random histories: a safety phase with every fault, then a healed network on which the survivors must agree again."""

from __future__ import annotations

from random import Random

import pytest

from consensus.simulation import Host, World

SEEDS = 150


def living(world: World) -> list[Host]:
    return [host for host in world.hosts.values() if host.alive and host.stopped is None]


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
            victim.machine.leave(None, world.now)
            world._settle(victim)


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


def cut_off(world: World, host: Host) -> bool:
    """Nobody that this process knows of is there any more to tell it anything."""
    view = host.machine.known_view
    known = set(host.machine._introducers)
    known |= {member.address for member in view.members if member.id != host.id} if view else set()
    others = [world.at_address.get(address) for address in known]
    alone = view is not None and view.ids == (host.id,)
    return not alone and not any(other is not None and other is not host and other.running for other in others)


def settled(world: World) -> bool:
    """Everybody who lives acts in one view made of exactly the living, or nobody of them ever got in."""
    hosts = [host for host in living(world) if not cut_off(world, host)]
    if not hosts:
        return True
    views = {host.activated[-1].view_id if host.activated else "" for host in hosts}
    if len(views) > 1 or views == {""}:
        return views == {""} and all(host.machine.view is None for host in hosts)
    return set(hosts[0].activated[-1].ids) == {host.id for host in hosts}


def blocked_for_good(world: World) -> bool:
    """Whether too many died undiscounted (or were excluded by nobody's quorum): blocking is the promised answer."""
    views = [host.machine.view for host in living(world) if host.machine.view is not None]
    if not views:
        return True
    newest = max(views, key=lambda view: view.epoch)
    inside = {host.id for host in living(world)} & set(newest.ids)
    return 2 * len(inside) < len(newest) or (2 * len(inside) == len(newest) and newest.members[0].id not in inside)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_survivors_agree_after_any_history(seed: int) -> None:
    world = history(seed)
    world.run_until(lambda: settled(world), 30.0, expect=False)
    assert settled(world) or blocked_for_good(world), (seed, list(world.hosts.values()))


def test_same_seed_same_trace() -> None:
    assert history(7).trace == history(7).trace
