"""Random histories of jobs with a shared store that fails, while members die, sleep and lose touch. Each is for a few rules."""

from __future__ import annotations

from random import Random

from consensus.config import Config, Liveness, Policy
from consensus.simulation import Character, Host, World, judged, living


def job(
    seed: int,
    size: int,
    *,
    leases: bool = False,
    files: bool = False,
    trusting: bool = True,
    skew: float = 0.0,
    timeout: float = 1.0,
) -> World:
    """A job of ``size`` that is acting, and whose members know each other well."""
    config = Config(
        policy=Policy.STORAGE,
        liveness=Liveness.LEASES if leases else Liveness.PINGS,
        storage="simulated://store",
        storage_timeout=timeout,
        storage_poll=1.0,
        trust_refused=trusting,
    )
    world = judged(World(seed, config, store=Character.FILES if files else Character.ATOMIC))
    world.faults.skew = skew
    world.cluster(size)
    world.run(0.6)
    return world


def seniors(world: World) -> list[Host]:
    """Who lives, in the order of the newest active view."""
    view = max((host.activated[-1] for host in living(world) if host.activated), key=lambda view: view.epoch)
    return [world.hosts[key] for key in view.ids if world.hosts[key] in living(world)]


def sleepers(seed: int) -> World:
    """Whoever is about to record a view falls asleep; the others go on without it, and remove old records; it wakes up."""
    rng = Random(seed)
    world = job(seed, rng.choice([5, 6]), files=rng.random() < 0.5)
    world.faults.store.latency = (0.005, 0.03)
    senior, *others = seniors(world)
    world.kill(others.pop())
    world.run(rng.uniform(0.01, 0.2))
    world.pause(senior)
    world.run(rng.uniform(2.6, 3.0))
    for _ in range(3):
        world.kill(others.pop())
        world.run(0.5)
    world.resume(senior)
    world.run(1.0)
    return world


def readers(seed: int) -> World:
    """Somebody falls asleep while it reads the names of files; meanwhile those files are removed; it wakes up."""
    rng = Random(seed)
    world = job(seed, 6, files=True, timeout=8.0)
    world.faults.store.latency = (0.005, 0.03)
    *others, sleeper = seniors(world)
    world.kill(others.pop())
    world.run(rng.uniform(0.04, 0.2))
    world.isolate([sleeper], living(world))  # it learns from the store alone
    world.pause(sleeper)
    world.run(rng.uniform(2.6, 3.0))
    for _ in range(3):
        world.kill(others.pop())
        world.run(0.6)
    world.resume(sleeper)
    world.run(1.0)
    return world


def doubts(seed: int) -> World:
    """Answers are lost while one member after the other dies: many a record is created twice, or late, or not at all."""
    rng = Random(seed)
    world = job(seed, rng.choice([4, 5]), files=rng.random() < 0.5)
    world.faults.store.lost = rng.choice([0.3, 0.6])
    for _ in range(3):
        if len(living(world)) > 1:
            world.kill(rng.choice(living(world)))
        world.run(rng.uniform(0.005, 1.5))
        if rng.random() < 0.5:
            world.start(f"j{len(world.hosts)}", introducers=tuple(host.name for host in living(world)))
        world.run(rng.uniform(0.5, 2.0))
    return world


def splits(seed: int) -> World:
    """Two sides of which a slow store takes one; the others are told so."""
    rng = Random(seed)
    world = job(seed, rng.choice([3, 4, 5, 6]))
    world.faults.store.slow = rng.choice([0.0, 0.2, 0.4])
    for _ in range(2):
        hosts = living(world)
        rng.shuffle(hosts)
        cut = rng.randrange(1, len(hosts)) if len(hosts) > 1 else 1
        world.isolate(hosts[:cut], hosts[cut:])
        world.run(rng.uniform(2.5, 3.5))
        world.heal()
        world.run(rng.uniform(0.1, 1.5))
    return world


def strangers(seed: int) -> World:
    """Two sides want the same epoch while half of what anybody reads cannot be opened, as if its writer had another secret."""
    rng = Random(seed)
    world = job(seed, rng.choice([4, 5, 6]), files=rng.random() < 0.5)
    world.faults.store.blind = 0.5
    for _ in range(2):
        hosts = living(world)
        rng.shuffle(hosts)
        world.isolate(hosts[: len(hosts) // 2], hosts[len(hosts) // 2 :])
        world.run(rng.uniform(3.0, 5.0))
        world.heal()
        world.faults.store.blind = 0.5
        world.run(rng.uniform(0.5, 1.5))
    return world


def comings(seed: int) -> World:
    """Processes that know the store alone look for the job while it lives, and while nobody answers them for a while."""
    rng = Random(seed)
    world = job(seed, 1)
    for turn in range(2):
        new = world.start(f"j{turn}", introducers=(f"j{turn}",))
        if rng.random() < 0.5:
            world.isolate([new], [host for host in living(world) if host is not new])
            world.run(rng.uniform(0.5, 3.0))
            world.heal()
        world.run(rng.uniform(0.5, 2.0))
    return world


def wipes(seed: int) -> World:
    """Somebody removes everything from the store, while a view is on its way or not."""
    rng = Random(seed)
    world = job(seed, rng.choice([3, 4, 5]), files=rng.random() < 0.5)
    assert world.store_requests is not None
    if rng.random() < 0.5:
        world.kill(seniors(world)[-1])
        world.run(rng.uniform(0.0, 0.02))
    world.store_requests.wipe()
    world.run(rng.uniform(0.0, 0.5))
    for host in living(world)[1:2]:
        world.kill(host)
    world.run(8.0)
    return world


def changes(seed: int) -> World:
    """One change after the other, with a store that is slow, and now and then away for somebody."""
    rng = Random(seed)
    world = job(seed, rng.choice([4, 5, 6]), files=True, leases=rng.random() < 0.5)
    world.faults.store.slow = rng.choice([0.01, 0.05, 0.2])
    for turn in range(5):
        hosts = living(world)
        if turn % 2 or len(hosts) < 3:
            world.start(f"j{turn}", introducers=tuple(host.name for host in hosts[:3]))
        else:
            world.kill(rng.choice(hosts))
        if rng.random() < 0.4:
            world.faults.store.cut = {rng.choice(hosts).id}
        world.run(rng.uniform(0.05, 0.8))
        world.faults.store.cut.clear()
    world.run(2.0)
    return world


def silences(seed: int) -> World:
    """Leases, clocks that have nothing in common, and somebody who vanishes without a trace."""
    rng = Random(seed)
    world = job(seed, rng.choice([2, 3, 4]), leases=True, trusting=False, skew=1e5)
    world.kill(rng.choice(living(world)))
    world.run(40.0)
    return world


def outages(seed: int) -> World:
    """Leases, and a store that is away for longer than one lasts, for everybody or for one."""
    rng = Random(seed)
    world = job(seed, rng.choice([3, 4, 5]), leases=True)
    world.run(5.0)
    if rng.random() < 0.5:
        world.faults.store.away = True
    else:
        world.faults.store.cut = {rng.choice(living(world)).id}
    world.run(rng.uniform(5.0, 9.0))
    world.heal()
    world.run(1.0)
    return world
