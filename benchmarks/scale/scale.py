"""The membership protocol at a thousand members and more, in the simulated world (a LAN: 0.3 to 0.7 ms one way).

    python -m benchmarks scale                                        # everything at 1000 members
    python -m benchmarks scale --members 300 --only crash silence
    python -m benchmarks scale --members 10000 --only pace            # ten seconds, a crash and ten silent in them
    python -m benchmarks scale --checked                              # with the checkers of the invariants on (slower)

Times are simulated and exact: they depend on the seed alone. The data plane reports, as at a healthy moment of training, the
same everywhere. Bytes are real: each message is encoded and sealed, introductions between members included.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from collections import Counter
from collections.abc import Callable
from random import Random

from benchmarks.report import parser
from consensus.border import Built, Flushed, Freeze, Installed, Order
from consensus.config import Config
from consensus.messages import Envelope, Message
from consensus.simulation import Host, StubPlane, World, judged
from consensus.simulation.world.host import BUILD_TIME
from consensus.simulation.world.observer import Observer
from consensus.wire.codec import Codec
from consensus.wire.envelope import OVERHEAD, Sealed
from consensus.wire.keys import KeyRing
from consensus.wire.pieces import LARGEST

REPORT = bytes(60)
"""What ``ftlib.core.calls.salvage.Report`` takes."""

LOST = 10
SAMPLE = 25


class Plane(StubPlane):
    """All report the same."""

    def handle(self, order: Order) -> None:
        """See ``SimulatedPlane``."""
        host = self._host
        match order:
            case Freeze(epoch, _):  # there are no calls to wait for
                host.machine.handle(Flushed(epoch, REPORT), host.now)
            case Installed(view, _):
                host.after(BUILD_TIME, lambda: host.machine.handle(Built(view.view_id), host.now))


class Traffic(Observer):
    """Messages by kind and their encoded bytes, without the envelope."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.size: Counter[str] = Counter()
        self.off = False
        self._codec = Codec(Config().job)
        self._latest: tuple[Message, int] | None = None

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        if target is None or self.off:
            return
        if self._latest is None or self._latest[0] is not message:
            envelope = Envelope(Config().job, host.id, host.machine.member.address, message)
            self._latest = message, len(self._codec.encode(envelope))
        kind = type(message).__name__
        self.count[kind] += 1
        self.size[kind] += self._latest[1]


class Wire(Observer):
    """What some members send, sealed, with their introductions: the real envelope at simulated times."""

    def __init__(self, world: World, sample: list[Host]) -> None:
        self._world_ = world
        self._ring = KeyRing(["a secret of the benchmark"])
        self._sealed: dict[str, Sealed] = {}
        self.sample = {host.id for host in sample}
        self._codec = Codec(Config().job)
        self.bytes: Counter[str] = Counter()

    def _of(self, host: Host) -> Sealed:
        known = self._sealed.get(host.id)
        if known is None:
            known = Sealed(self._ring, Config().job, host.machine.member.address, clock=lambda: self._world_.now)
            self._sealed[host.id] = known
        return known

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        if target is None or not (host.id in self.sample or target.id in self.sample):
            return
        one, other, address = self._of(host), self._of(target), target.machine.member.address
        packet = self._codec.encode(Envelope(Config().job, host.id, host.machine.member.address, message))
        sealed = one.seal(packet, address)
        if (hello := one.hello(address)) is not None:
            self._count(host, "Knock", hello)
            reply = other.unseal(hello, "").reply
            assert reply is not None
            self._count(target, "Ticket", reply)
            one.unseal(reply, "")
        if sealed is None:
            sealed = one.seal(packet, address)
            assert sealed is not None
        self._count(host, type(message).__name__, sealed)
        other.unseal(sealed, "")

    def _count(self, host: Host, kind: str, data: bytes) -> None:
        if host.id in self.sample:
            self.bytes[kind] += len(data)


class Row:
    """One line of the table."""

    def __init__(self, name: str, value: str, bar: str, good: bool) -> None:
        self.good = good
        print(f"{'ok  ' if good else 'MISS'}  {name:58} {value:34} {bar}", flush=True)


def world_of(args: argparse.Namespace, config: Config | None = None, seed: int = 1) -> World:
    world = World(seed, config, plane=Plane)
    return judged(world) if args.checked else world


def founded(args: argparse.Namespace, seed: int = 1, config: Config | None = None) -> tuple[World, list[Host]]:
    """A job in which everybody acts in the first view, some time later."""
    world = world_of(args, config, seed)
    hosts = world.cluster(args.members)
    world.run(3.0 + Random(seed).random())
    return world, hosts


def acting(hosts: list[Host], size: int) -> Callable[[], bool]:
    """Whether ``hosts`` all act in a view of ``size``; asked after every event, so the likeliest to lag is asked first."""
    rest = list(hosts)

    def done() -> bool:
        while rest and rest[-1].activated and len(rest[-1].activated[-1]) == size:
            rest.pop()
        return not rest

    return done


def crash(args: argparse.Namespace) -> list[Row]:
    """One crash with proof."""
    world, hosts = founded(args)
    rows = []
    for title, victim in (("a member", hosts[-1]), ("the coordinator", hosts[0])):
        traffic = Traffic()
        world.observe(traffic)
        hosts.remove(victim)
        world.kill(victim)
        took = world.run_until(acting(hosts, len(hosts)), 10.0, expect=False)
        count, size = sum(traffic.count.values()) / len(hosts), sum(traffic.size.values()) / len(hosts)
        rows.append(Row(f"crash of {title} -> new view active everywhere", f"{1000 * took:.1f} ms", "<= 50 ms", took <= 0.05))
        bars = count <= 10 and size <= 2000
        rows.append(Row("  sent for it, each member's share", f"{count:.1f} messages, {size:.0f} bytes", "O(1)", bars))
        traffic.off = True
        world.run(1.0)
    return rows


def silence(args: argparse.Namespace) -> list[Row]:
    """Ten hosts vanish at once."""
    rows = []
    for seed in range(1, args.seeds + 1):
        world, hosts = founded(args, seed)
        lost = Random(seed).sample(hosts[1:], LOST)
        rest = [host for host in hosts if host not in lost]
        for host in lost:
            world.pause(host)
        took = world.run_until(acting(rest, len(rest)), 10.0, expect=False)
        epochs = {host.activated[-1].epoch for host in rest}
        limit = world.config.exclude_after
        good = epochs == {2} and limit <= took <= limit + 1.0
        rows.append(
            Row(f"{LOST} silent at once (seed {seed})", f"{took:.2f} s, {max(epochs) - 1} change(s)", "1, <= 3 s", good)
        )
    return rows


def bootstrap(args: argparse.Namespace) -> list[Row]:
    """From nothing."""
    world = world_of(args)
    began = world.now
    hosts = world.founders(args.members)
    took = world.run_until(acting(hosts, args.members), 30.0, expect=False)
    rows = [_booted("founded together (initial_size: all)", world.now - began, hosts, took, 12), _longest(world)]
    world = world_of(args)
    hosts = [world.start("m0")]
    world.run(0.1)
    began = world.now
    hosts += [world.start(f"m{index}", introducers=("m0",)) for index in range(1, args.members)]
    took = world.run_until(acting(hosts, args.members), 30.0, expect=False)
    doublings = 1 + math.ceil(math.log2(args.members))  # a view admits as many as it keeps
    rows.append(_booted("initial_size=1, all others join at once", world.now - began, hosts, took, max(12, doublings)))
    return [*rows, _longest(world)]


def _longest(world: World) -> Row:
    size = world.network.largest + OVERHEAD
    return Row("  longest message, sealed", f"{size:,} bytes", "<= 65,536", size <= LARGEST)


def _booted(name: str, seconds: float, hosts: list[Host], took: float, most: int) -> Row:
    views = max(host.machine.view.epoch for host in hosts if host.machine.view is not None)
    whole = all(host.activated and len(host.activated[-1]) == len(hosts) for host in hosts)
    good = whole and took <= 10.0 and views <= most
    return Row(name, f"{seconds:.2f} s, {views} views", f"<= 10 s, <= {most} views", good)


def pace(args: argparse.Namespace) -> list[Row]:
    """Ten simulated seconds, from nothing: founded, then quiet, one crash, ten that fall silent. What it takes here, too."""
    wall, own = time.perf_counter(), time.process_time()
    world = world_of(args)
    end = world.now + 10.0
    hosts = world.founders(args.members)
    took = world.run_until(acting(hosts, args.members), 10.0, expect=False)
    rows = [_booted("founded together", took, hosts, took, 12)]
    world.run(2.0)
    world.kill(hosts.pop())
    took = world.run_until(acting(hosts, len(hosts)), 10.0, expect=False)
    rows.append(Row("one crash -> new view active everywhere", f"{1000 * took:.1f} ms", "<= 50 ms", took <= 0.05))
    world.run(1.0)
    before = hosts[0].activated[-1].epoch
    for host in (lost := Random(1).sample(hosts[1:], LOST)):
        world.pause(host)
    gone = {host.id for host in lost}
    rest = [host for host in hosts if host.id not in gone]
    took = world.run_until(acting(rest, len(rest)), 10.0, expect=False)
    changes = max(host.activated[-1].epoch for host in rest) - before
    rows.append(Row(f"{LOST} silent at once", f"{took:.2f} s, {changes} change(s)", "1, <= 3 s", changes == 1 and took <= 3.0))
    world.run(max(0.0, end - world.now))
    wall, own = time.perf_counter() - wall, time.process_time() - own
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"{wall:.0f} s ({own:.0f} s of own time)"
    rows.append(Row("10 simulated seconds, wall", text, "<= 300 s", wall <= 300))
    print(f"        {world.events:,} events, {world.events / own:,.0f} a second of own time; {peak:,.0f} MB at the most")
    return [*rows, _longest(world)]


def idle(args: argparse.Namespace) -> list[Row]:
    """What a quiet member sends, sealed."""
    world, hosts = founded(args)
    wire = Wire(world, Random(1).sample(hosts, min(SAMPLE, len(hosts))))
    world.observe(wire)
    world.run(10.0)  # first introductions
    wire.bytes.clear()
    began, events, seconds = time.process_time(), world.events, args.quiet
    world.run(seconds)
    took = time.process_time() - began
    rate = wire.bytes.total() / len(wire.sample) / seconds
    rows = [Row("idle member sends, sealed", f"{rate:.0f} B/s", "<= 1000 B/s", rate <= 1000)]
    for kind, size in wire.bytes.most_common():
        print(f"        {kind:12} {size / len(wire.sample) / seconds:6.1f} B/s")
    print(
        f"        {(world.events - events) / took:,.0f} events/s of own time, {took:.0f} s for {seconds:.0f} simulated seconds"
    )
    return rows


def trouble(args: argparse.Namespace) -> list[Row]:
    """Members that lose most of what they send and get, links that come and go, loss everywhere."""
    rows = []
    for seed in range(1, args.seeds + 1):
        for kind in ("lossy", "flapping", "loss"):
            world, hosts = founded(args, seed)
            bad = Random(seed).sample(hosts, max(1, args.members // 100)) if kind != "loss" else []
            if kind == "lossy":
                world.faults.lossy.update({host.id: 0.8 for host in bad})
            elif kind == "flapping":
                for number, host in enumerate(bad):
                    world.after(20.0 * number / len(bad), _flapper(world, host, up=True))
            else:
                world.faults.loss = 0.05
            world.run(args.seconds)
            good = [host for host in hosts if host not in bad]
            out = [host for host in good if host.stopped is not None]
            view = good[0].machine.view
            assert view is not None
            gone = sum(1 for host in bad if host.id not in view)
            name = {"lossy": "80 % loss", "flapping": "flapping at 20 s", "loss": "5 % loss everywhere"}[kind]
            text = f"{len(out)} healthy, {gone} of {len(bad)} faulty removed, {view.epoch - 1} changes"
            rows.append(Row(f"{name}, {args.seconds:.0f} s (seed {seed})", text, "no healthy one", not out))
    return rows


def _flap(world: World, host: Host, *, up: bool) -> None:
    """Its link goes down, or comes back, every 20 s."""
    for other in world.hosts.values():
        if other is not host:
            links = {(host.id, other.id), (other.id, host.id)}
            world.faults.cut = world.faults.cut | links if up else world.faults.cut - links
    world.after(20.0, _flapper(world, host, up=not up))


def _flapper(world: World, host: Host, *, up: bool) -> Callable[[], None]:
    return lambda: _flap(world, host, up=up)


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "crash": crash,
    "silence": silence,
    "bootstrap": bootstrap,
    "pace": pace,
    "idle": idle,
    "trouble": trouble,
}


def main() -> int:
    options = parser(__doc__, agent=False, members=1000, seeds=3)
    options.add_argument("--seconds", type=float, default=120.0, help="simulated, of trouble")
    options.add_argument("--quiet", type=float, default=70.0, help="simulated seconds in which an idle member is weighed")
    options.add_argument("--only", nargs="+", choices=sorted(PARTS))
    options.add_argument("--checked", action="store_true")
    args = options.parse_args()
    rows: list[Row] = []
    for name in args.only or PARTS:
        began = time.perf_counter()
        rows += PARTS[name](args)
        print(f"      ({name}: {time.perf_counter() - began:.0f} s)")
    return int(not all(row.good for row in rows))
