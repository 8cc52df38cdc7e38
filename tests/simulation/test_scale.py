"""Views beyond ``mesh_limit``. Simulated times are exact; ``benchmarks/scale.py`` has them for a thousand members."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from consensus.codec import Codec
from consensus.config import Config
from consensus.messages import Chosen, Envelope, Install, JoinReply, Message
from consensus.simulation import Host, StubPlane, World
from consensus.simulation.plane import BUILD_TIME
from consensus.view import View

CODEC = Codec(Config().job)
WHOLE = (Install, Chosen, JoinReply)


class Alike(StubPlane):
    """All report the same, as at a healthy moment of training."""

    def freeze(self, epoch: int, after_call: int | None) -> None:
        self._host.machine.flushed(epoch, bytes(60), self._host.now)

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:
        self._host.after(BUILD_TIME, lambda: self._host.machine.ready(view.view_id, self._host.now))


def job(size: int, seed: int = 1) -> tuple[World, list[Host]]:
    world = World(seed, plane=Alike)
    hosts = world.cluster(size)
    world.run(3.0 + Random(seed).random())
    return world, hosts


def everywhere(hosts: list[Host], size: int) -> bool:
    return all(host.activated and len(host.activated[-1]) == size for host in reversed(hosts))


def count(world: World) -> tuple[Counter[str], Counter[str], list[Message]]:
    """Messages and their bytes by kind from now on, and the views that travel whole."""
    number: Counter[str] = Counter()
    size: Counter[str] = Counter()
    whole: list[Message] = []

    def watch(host: Host, message: Message) -> bool:
        number[type(message).__name__] += 1
        size[type(message).__name__] += len(CODEC.encode(Envelope(world.config.job, host.id, ("10.0.0.1", 1), message)))
        if isinstance(message, WHOLE) and message.view is not None:
            whole.append(message)
        return True

    world.watch = watch
    return number, size, whole


@pytest.mark.parametrize("size", [100, 300])
def test_a_crash_costs_each_member_the_same_at_any_size(size: int) -> None:
    world, hosts = job(size)
    number, sizes, whole = count(world)
    world.kill(hosts.pop())
    assert world.run_until(lambda: everywhere(hosts, size - 1), 5.0) <= 0.030
    assert sum(number.values()) <= 8 * size
    assert sum(sizes.values()) <= 1500 * size
    assert not whole, "everybody holds the parent"
    assert sizes["Install"] <= 400 * size
    assert not number["FlushRequest"]


def test_silent_members_go_in_one_change_soon_after_t_excl() -> None:
    world, hosts = job(100)
    lost = Random(1).sample(hosts[1:], 10)
    rest = [host for host in hosts if host not in lost]
    for host in lost:
        world.pause(host)
    took = world.run_until(lambda: everywhere(rest, 90), 5.0)
    assert world.config.exclude_after <= took <= world.config.exclude_after + 1.0
    assert {host.activated[-1].epoch for host in rest} == {2}


def test_joining_all_at_once_is_a_doubling_each_time() -> None:
    world = World(1, plane=Alike)
    hosts = [world.start("m0")]
    world.run(0.1)
    number, _, whole = count(world)
    hosts += [world.start(f"m{index}", introducers=("m0",)) for index in range(1, 100)]
    assert world.run_until(lambda: everywhere(hosts, 100), 10.0) <= 3.0
    assert hosts[0].activated[-1].epoch <= 8
    assert number["JoinRequest"] <= 20 * len(hosts)
    told = Counter(type(message).__name__ for message in whole)
    assert told["Install"] == 99, "the whole view to each joiner, once"
    assert told["JoinReply"] <= 3 * len(hosts)


def test_one_lossy_member_makes_nobody_leave() -> None:
    world, hosts = job(60)
    bad = hosts[7]
    world.faults.lossy[bad.id] = 0.8
    world.run(12.0)
    assert not [host for host in hosts if host is not bad and host.stopped is not None]


def test_what_got_lost_comes_again_as_a_difference() -> None:
    world, hosts = job(40)
    _, _, whole = count(world)
    seen, until = world.watch, world.now + 0.3
    assert seen is not None
    world.watch = lambda host, message: seen(host, message) and (not isinstance(message, Install) or world.now > until)
    world.kill(hosts.pop())
    assert 0.3 <= world.run_until(lambda: everywhere(hosts, 39), 5.0) <= 1.0
    assert not whole
