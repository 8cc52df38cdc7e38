"""Random histories in which ballots, votes and views of several changes cross. Short: a bug shows within few of them."""

from __future__ import annotations

from functools import partial
from random import Random

from consensus.border import Flushed, Freeze, Installed, Order
from consensus.messages import Ack, Gossip
from consensus.simulation import Host, World, judged, living
from consensus.simulation.world.faults import Faults, Spread
from consensus.simulation.world.host import MakePlane, StubPlane

from ..judgement import begun


def duels(seed: int, plane: MakePlane = StubPlane) -> World:
    """What ballots are for: messages late by seconds, and coordinators that die or sleep in the middle of a change."""
    rng = Random(seed)
    world = judged(World(seed, plane=plane))
    world.cluster(rng.choice([4, 5, 6]))
    world.run(0.6)
    world.faults.reordering, world.faults.late, world.faults.loss = 0.4, 1.5, 0.1
    for _ in range(4):
        hosts = living(world)
        if len(hosts) > 2:
            world.kill(rng.choice(hosts[1:]))
        sleepers = rng.sample(living(world), 1)
        world.run(rng.uniform(0.004, 0.015))
        for host in sleepers:
            world.pause(host)
        world.run(rng.choice([0.3, 1.3, 2.3]))
        for host in sleepers:
            world.resume(host)
        world.run(0.3)
    return world


class Counting(StubPlane):
    """Reports how often it was asked: two questions, two reports."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._asked = 0

    def handle(self, order: Order) -> None:
        match order:
            case Freeze(epoch, _):
                self._asked += 1
                host = self._host
                host.machine.handle(Flushed(epoch, f"{host.id}:{epoch} asked {self._asked}".encode()), host.now)
            case Installed(view, reports):
                told = {writer: report.split()[0] for writer, report in reports.items() if report}
                super().handle(Installed(view, told))
            case _:
                super().handle(order)


def counts(seed: int) -> World:
    """``duels`` of data planes that never report the same twice."""
    return duels(seed, Counting)


def echoes(seed: int) -> World:
    """Everything arrives again, at once and seconds later, while members come, go and die: one change after the other."""
    rng = Random(seed)
    world = judged(World(seed))
    world.cluster(rng.choice([3, 4, 5]))
    world.faults.duplication, world.faults.replay, world.faults.replay_late = 0.3, 0.3, 3.0
    for turn in range(4):
        hosts = living(world)
        world.start(f"j{turn}", introducers=tuple(host.name for host in hosts[:3]))
        world.run(rng.uniform(0.0, 1.4))
        if len(hosts) > 2:
            victim = rng.choice(hosts)
            if rng.random() < 0.5:
                world.kill(victim)
            else:
                world.inside(victim, victim.leave)
        world.run(rng.uniform(0.3, 1.0))
    world.run(1.0)
    return world


def rivals(seed: int) -> World:
    """One coordinator after the other falls asleep in the middle of a change; then all wake up, and bid against each other."""
    rng, world, _ = begun(seed, 4, 5, 6, 7)
    world.faults.reordering, world.faults.late = 0.4, rng.choice([0.3, 1.0, 2.0])
    for _ in range(3):
        view = max((host.activated[-1] for host in living(world)), key=lambda view: view.epoch)
        seniors = [world.hosts[key] for key in view.ids if world.hosts[key] in living(world)]
        if len(seniors) > 3:
            world.kill(seniors[-1])
        for host in seniors[:2]:
            world.run(rng.uniform(0.001, 0.012))
            world.pause(host)
            world.run(rng.uniform(0.7, 1.4))
        for host in seniors[:2]:
            world.resume(host)
            world.run(rng.choice([0.0, 0.01, 0.1]))
        world.run(rng.uniform(0.3, 1.0))
    return world


def quarrels(seed: int, sizes: tuple[int, ...] = (3, 3, 4, 5), quickest: float = 0.005, again: float = 0.8) -> World:
    """Nobody hears the coordinator's acks, and it does not give way to the next one. Messages are slow, and come again."""
    rng = Random(seed)
    world = judged(World(seed))
    hosts = world.cluster(rng.choice(sizes))
    world.run(0.6)
    view = hosts[0].activated[-1]
    senior, second = (world.hosts[key] for key in view.ids[:2])
    world.watch = lambda host, message: host is not senior or not isinstance(message, (Ack, Gossip))
    world.network.connects = lambda one, other, _: senior.id not in (one, other)  # type: ignore[method-assign]
    world.run(rng.uniform(0.8, 1.2))
    world.delay(Faults(spread=Spread.UNIFORM, latency=(quickest, quickest + 0.06)))
    world.faults.replay, world.faults.replay_late = again, 0.2
    for _ in range(4):
        for host in (senior, second):
            world.inside(host, partial(host.machine._change.frozen, host.now))
            world.run(rng.uniform(0.0, 0.05))
        world.run(rng.uniform(0.2, 0.4))
    return world


def repeats(seed: int) -> World:
    """``quarrels`` of three, with nearly every message twice: old answers come while new questions are open."""
    return quarrels(seed, (3,), 0.02, 0.9)


def hurries(seed: int) -> World:
    """One change after the other, slow messages, and answers to the last change that come again in the next one."""
    rng, world, hosts = begun(seed, 7)
    world.delay(Faults(spread=Spread.UNIFORM, latency=(0.01, 0.06)))
    world.faults.replay, world.faults.replay_late = 0.6, 0.6
    view = hosts[0].activated[-1]
    leavers = [world.hosts[key] for key in view.ids[1:]]
    for leaver in rng.sample(leavers, 4):
        world.inside(leaver, leaver.leave)
        world.run(rng.uniform(0.1, 0.4))
    return world


def halves(seed: int) -> World:
    """Two sides of which at most one may go on, and every message arrives twice."""
    rng = Random(seed)
    world = judged(World(seed))
    hosts = world.cluster(rng.choice([3, 4, 5, 6]))
    world.faults.duplication = 0.5
    world.run(0.6)
    rng.shuffle(hosts)
    cut = rng.randrange(1, len(hosts))
    world.isolate(hosts[:cut], hosts[cut:])
    world.run(3.5)
    return world
