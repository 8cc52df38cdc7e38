"""Views beyond ``mesh_limit``. Simulated times are exact; ``benchmarks/scale/scale.py`` has them for a thousand members."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from consensus.border import Built, Flushed, Freeze, Installed, Order
from consensus.config import Config
from consensus.messages import Chosen, Envelope, Install, JoinReply, Message
from consensus.simulation import Host, StubPlane, World, judged
from consensus.simulation.world.host import BUILD_TIME
from consensus.wire import pieces
from consensus.wire.codec import Codec
from consensus.wire.envelope import OVERHEAD
from consensus.wire.pieces import LARGEST

CODEC = Codec(Config().job)
WHOLE = (Install, Chosen, JoinReply)


class Alike(StubPlane):
    """All report the same, as at a healthy moment of training."""

    def handle(self, order: Order) -> None:
        host = self._host
        match order:
            case Freeze(epoch, _):
                host.machine.handle(Flushed(epoch, bytes(60)), host.now)
            case Installed(view, _):
                host.after(BUILD_TIME, lambda: host.machine.handle(Built(view.view_id), host.now))


def job(size: int, seed: int = 1) -> tuple[World, list[Host]]:
    world = judged(World(seed, plane=Alike))
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
    world = judged(World(1, plane=Alike))
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


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> int:
    """What is longer than two kilobytes is cut: a view of a hundred members."""
    monkeypatch.setattr(pieces, "PART", 1500)
    monkeypatch.setattr(pieces, "WHOLE", 2000)
    return 2000


@pytest.mark.parametrize("loss", [0.0, 0.1])
def test_a_long_view_is_told_in_pieces(short: int, loss: float) -> None:
    world = judged(World(1, plane=Alike))
    world.faults.loss = loss
    hosts = world.founders(150)
    took = world.run_until_each(hosts, lambda host: bool(host.activated), 30.0)
    assert took <= (5.0 if loss else 1.0)
    assert len(CODEC.encode(Envelope("default", "a", ("10.0.0.1", 1), Chosen(hosts[0].activated[0], "")))) > 2 * short
    assert world.network.largest <= short
    assert loss or not any(len(host.pieces) for host in hosts)


def test_a_member_knows_of_those_that_it_hears_from() -> None:
    world = judged(World(1, plane=Alike))
    hosts = world.cluster(300)
    world.kill(hosts.pop())
    assert world.run_until_each(hosts, lambda host: len(host.activated) == 2, 1.0) <= 0.05
    assert all(len(host.machine._core.table.asked_for) < 40 for host in hosts[3:])
    assert len({id(host.machine.view) for host in hosts}) <= 3, "one view for all who hold it"


@pytest.mark.soak
def test_ten_thousand() -> None:
    world = judged(World(1, plane=Alike))
    hosts = world.founders(10_000)
    assert world.run_until_each(hosts, lambda host: bool(host.activated), 10.0) <= 1.0
    assert {host.activated[-1].epoch for host in hosts} == {1}
    world.run(1.0)
    world.kill(hosts.pop())
    assert world.run_until_each(hosts, lambda host: len(host.activated) == 2, 1.0) <= 0.05
    lost = {host.id for host in Random(1).sample(hosts[1:], 10)}
    for host in hosts:
        if host.id in lost:
            world.pause(host)
    rest = [host for host in hosts if host.id not in lost]
    assert world.run_until_each(rest, lambda host: len(host.activated) == 3, 5.0) <= 3.0
    assert {len(host.activated[-1]) for host in rest} == {9_989}
    assert world.network.largest + OVERHEAD <= LARGEST


def test_what_was_not_met_names_ten_members_at_most() -> None:
    world, hosts = job(40)
    with pytest.raises(AssertionError) as error:
        world.run_until(lambda: False, 0.01)
    assert sum(repr(host) in str(error.value) for host in hosts) == 10
    assert str(error.value).endswith("and 30 more")


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
