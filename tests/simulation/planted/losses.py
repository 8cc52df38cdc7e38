"""Random histories in which members lose touch, die, come and go. Short: a bug shows within few of them."""

from __future__ import annotations

from random import Random

import pytest

from consensus.config import Config
from consensus.messages import Ack, Chosen, Gossip, Introduction, JoinReply
from consensus.simulation import Scenario, World, judged, living
from consensus.simulation.script.play import prepare, safety
from tests.simulation.histories import test_found

from ...transcripts import test_stale_votes
from ..judgement import begun, end

NEWS = (Chosen, Introduction, JoinReply)
"""Messages that tell of a newer view."""


def partitions(seed: int) -> World:
    """What the lease and the quorum are for: few members, links cut for about T_excl, then deaths."""
    rng, world, _ = begun(seed, 3, 4, 5)
    for _ in range(2):
        hosts = living(world)
        for host in hosts:
            for other in hosts:
                if host.id < other.id and rng.random() < 0.5:
                    world.faults.cut_both(host.id, other.id)
        world.run(rng.uniform(1.7, 3.5))
        for victim in rng.sample(hosts, rng.randrange(len(hosts))):
            world.kill(victim)
        world.faults.heal()
        world.run(rng.uniform(0.0, 1.0))
    world.run(2.0)
    return world


def bridges(seed: int) -> World:
    """Some members hear of each other only through others, or late; then those others die."""
    rng, world, hosts = begun(seed, 3, 4, 5)
    one, other = rng.sample(hosts, 2)
    world.faults.cut_both(one.id, other.id)
    world.run(rng.uniform(1.9, 3.0))
    end(world, rng.sample(hosts, rng.randrange(1, len(hosts))))
    world.run(rng.uniform(0.0, 0.5))
    world.faults.heal()
    world.run(2.5)
    return world


def delays(seed: int) -> World:
    """Some member's messages take long; then it is alone, and those it knew are dead."""
    rng, world, hosts = begun(seed, 2, 3, 4)
    slow = rng.choice(hosts)
    others = [host for host in hosts if host is not slow]
    world.faults.slow[slow.id] = rng.uniform(0.15, 0.22)
    world.run(rng.uniform(0.9, 1.4))
    world.isolate([slow], others)
    world.run(rng.uniform(1.0, 1.9))
    end(world, others)
    world.faults.heal()
    world.run(1.5)
    return world


def alarms(seed: int, replay: float = 0.0) -> World:
    """Members pause and go on, data planes fail and blame each other: many are suspected, nobody is dead."""
    rng, world, _ = begun(seed, 3, 4, 5)
    world.faults.replay, world.faults.replay_late = replay, 2.0
    for _ in range(4):
        hosts = living(world)
        if len(hosts) > 1:
            sleeper, blaming = rng.sample(hosts, 2)
            world.pause(sleeper)
            world.run(rng.uniform(0.6, 2.5))
            world.inside(blaming, lambda host=blaming, blamed=sleeper.id: host.fail((blamed,)))  # type: ignore[misc]
            world.run(rng.uniform(0.0, 0.6))
            world.resume(sleeper)
            world.run(rng.uniform(0.2, 1.0))
    world.run(2.0)
    return world


def naps(seed: int) -> World:
    """A member is cut off for just about as long as it takes to be voted out; then, mostly, all others die."""
    rng, world, hosts = begun(seed, 3, 4, 5)
    view = hosts[0].activated[-1]
    away = world.hosts[rng.choice(view.ids)]
    others = [host for host in hosts if host is not away]
    world.isolate([away], others)
    world.run(rng.uniform(1.4, 2.2))
    world.faults.heal()
    world.run(rng.uniform(0.0, 0.4))
    if rng.random() < 0.7:
        for host in others:
            world.kill(host)
    world.run(3.0)
    return world


def mutes(seed: int) -> World:
    """Nobody hears one member, and it hears all, but no news: they vote it out while it is in touch with them, and die."""
    rng, world, hosts = begun(seed, 3, 4, 5)
    view = hosts[0].activated[-1]
    mute = world.hosts[rng.choice(view.ids[1:])]
    others = [host for host in hosts if host is not mute]
    world.watch = lambda host, message: not isinstance(message, (Ack, Gossip) if host is mute else NEWS)
    connects, world.network.connects = world.network.connects, lambda one, other, _: mute.id not in (one, other)  # type: ignore[method-assign]
    world.run(rng.uniform(2.0, 2.3))
    sleepers = others[1:] if rng.random() < 0.5 else []
    for host in sleepers:
        world.pause(host)
    world.run(rng.uniform(0.0, 2.6))
    if sleepers:
        world.run(0.5)
    end(world, others)
    world.watch, world.network.connects = None, connects  # type: ignore[method-assign]
    world.run(2.5)
    return world


def deaf(seed: int) -> World:
    """The others went on without one member, are heard by it again, and die before they have told it."""
    rng, world, hosts = begun(seed, 2, 3, 4)
    view = hosts[0].activated[-1]
    out = world.hosts[rng.choice(view.ids[1:])]
    others = [host for host in hosts if host is not out]
    world.isolate([out], others)
    world.run(rng.uniform(2.8, 3.6))
    world.watch = lambda _, message: not isinstance(message, NEWS)
    world.faults.heal()
    world.run(rng.uniform(0.3, 1.0))
    end(world, others)
    world.run(3.0)
    return world


def farewells(seed: int) -> World:
    """Two leave, and hear nothing any more of the others, who let them go, let somebody in, and die."""
    rng, world, hosts = begun(seed, 4, 5, settled=1.0)
    view = hosts[0].activated[-1]
    leavers = [world.hosts[key] for key in view.ids[-2:]]
    rest = [world.hosts[key] for key in view.ids[:-2]]
    world.faults.cut |= {(one.id, other.id) for one in rest for other in leavers}
    world.faults.cut_both(leavers[0].id, leavers[1].id)
    for leaver in leavers:
        world.inside(leaver, leaver.leave)
    world.run(rng.uniform(0.1, 0.5))
    world.start("j", introducers=tuple(host.name for host in rest))
    world.run(rng.uniform(0.5, 1.3))
    end(world, rest)
    world.faults.heal()
    world.run(5.0)
    return world


def ghosts(seed: int) -> World:
    """A member starts anew and is not heard any more; pings of its last lifetime still are, and the acks reach it."""
    rng = Random(seed)
    world = judged(World(seed))
    hosts = world.cluster(2)
    senior, junior = (world.hosts[key] for key in hosts[0].activated[-1].ids)
    world.run(rng.uniform(0.6, 2.0))
    world.faults.clogged.add((junior.id, senior.id))
    world.run(rng.uniform(1.0, 1.9))
    world.kill(junior)
    world.faults.clogged.clear()  # what is held back stays so
    world.run(0.1)
    again = world.start(junior.name, introducers=(senior.name,), port=junior.member.port)
    world.run_until(lambda: bool(again.activated), 5.0)
    world.run(rng.uniform(0.0, 0.3))
    world.faults.cut.add((again.id, senior.id))
    world.watch = lambda _, message: not isinstance(message, NEWS)
    world.run(rng.uniform(1.5, 2.0))
    world.network.release()
    world.run(rng.uniform(0.7, 1.2))
    world.kill(senior)
    world.watch = None
    world.faults.heal()
    world.run(2.0)
    return world


def absences(seed: int) -> World:
    """A member is stopped, and the others go on without it; what they tell it is lost. Then all is well, for long enough."""
    rng, world, hosts = begun(seed, 3, 4)
    view = hosts[0].activated[-1]
    absent = world.hosts[rng.choice(view.ids[1:])]
    if absent.name == "m0":  # it would be told by beacons, being everybody's introducer
        absent = world.hosts[next(key for key in view.ids[1:] if key != absent.id)]
    world.pause(absent)
    world.watch = lambda _, message: not isinstance(message, NEWS)
    world.run(rng.uniform(4.5, 6.0))
    world.watch = None
    world.resume(absent)
    world.run(40.0)
    return world


def crowds(seed: int) -> World:
    """More ask to join than there are members, and all who come hang as soon as they are in: those who were there go on."""
    rng = Random(seed)
    size = rng.choice([1, 2, 3])
    world = judged(World(seed, Config(max_size=2 * size)))
    founders = world.cluster(size)
    world.run(0.6)
    names = tuple(host.name for host in founders)
    joiners = [world.start(f"j{index}", introducers=names) for index in range(size + rng.choice([1, 2, 3]))]
    world.run_until(lambda: founders[0].activated[-1].epoch == 2, 5.0)
    for joiner in joiners:
        world.pause(joiner)
    world.run_until(lambda: all(host.activated[-1].epoch > 2 for host in founders), 6.0)
    return world


def visits(seed: int) -> World:
    """Members come and die soon, and what they asked for arrives again and again."""
    rng = Random(seed)
    world = judged(World(seed))
    hosts = world.cluster(rng.choice([2, 3]))
    world.faults.replay, world.faults.replay_late = 0.5, 5.0
    names = tuple(host.name for host in hosts)
    for index in range(4):
        visitor = world.start(f"j{index}", introducers=names)
        world.run(rng.uniform(0.05, 1.5))
        world.kill(visitor)
        world.run(rng.uniform(0.05, 0.5))
    world.run(3.0)
    return world


def gossips(seed: int) -> World:
    """``alarms``, and old rumours among new ones."""
    return alarms(seed, replay=0.3)


def crumbling(seed: int) -> World:
    """Most of a group are suspected by everybody, and die."""
    rng, world, hosts = begun(seed, 9)
    victims = rng.sample(hosts, 6)
    for host in victims:
        world.pause(host)
    world.run(rng.uniform(1.0, 1.5))
    end(world, victims)
    world.run(1.0)
    return world


def stale_votes(seed: int) -> World:
    """See ``tests/transcripts/test_stale_votes.py``."""
    with pytest.MonkeyPatch.context() as patch:
        return test_stale_votes.stale_votes(patch)[0]


def late_news(seed: int) -> World:
    """See ``tests/transcripts/test_stale_votes.py``."""
    with pytest.MonkeyPatch.context() as patch:
        return test_stale_votes.late_news(patch)[0]


def strays(seed: int) -> World:
    """See ``ASTRAY`` in ``test_found``. What m4 says of its own view, so that m1 would stop, is lost."""
    scenario = Scenario.parse(test_found.ASTRAY)
    world = prepare(scenario, config=test_found.AS_FOUND)
    world.watch = lambda host, message: not (host.name == "m4" and isinstance(message, Introduction))
    safety(world, scenario)
    world.heal()
    world.run(2.0)
    world.watch = None
    world.run(2.0)
    return world


def upstarts(seed: int) -> World:
    """Two let in four, who outvote them: they go on without the two that they lost touch with, and die."""
    rng = Random(seed)
    world = judged(World(seed))
    founders = world.cluster(2)
    world.run(0.6)
    joiners = [world.start(f"j{index}", introducers=tuple(host.name for host in founders)) for index in range(4)]
    world.run_until(lambda: all(len(host.activated[-1]) == 6 for host in founders), 10.0)
    world.isolate(founders, joiners)
    world.run(rng.uniform(3.0, 4.5))
    end(world, joiners)
    world.faults.heal()
    world.run(5.0)
    return world


def widows(seed: int) -> World:
    """All but two die, and one of the two sleeps for longer than T_excl: nobody is lost for good."""
    rng, world, hosts = begun(seed, 4, 5, 6)
    view = hosts[0].activated[-1]
    one, sleeper = rng.sample([world.hosts[key] for key in view.ids[1:]], 2)
    world.pause(sleeper)
    for host in hosts:
        if host not in (one, sleeper):
            world.kill(host)
    world.run(rng.uniform(0.2, 2.5))
    world.resume(sleeper)
    world.run_until(lambda: {len(host.activated[-1]) for host in (one, sleeper)} == {2}, 5.0)
    return world
