"""A deterministic world of machines: virtual time, a simulated network, processes that crash, pause and restart.

One seed decides everything; two worlds with the same seed and script have the same trace. What happens is shown to observers,
the checkers of the invariants among them; what a process's data plane does is up to its ``plane``.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from random import Random

from ..codec import Codec
from ..config import Config
from ..member import Address, Member
from ..messages import Envelope, EvidenceKind, Message
from ..protocol.effects import (
    Activated,
    Check,
    Effect,
    Fence,
    Freeze,
    Installed,
    Note,
    PeerProgress,
    Quit,
    Send,
    Stalled,
    Stopped,
    Tether,
    Wish,
)
from ..protocol.machine import Machine
from .ballots import Ballots
from .checkers import Checkers
from .faults import Faults
from .host import Host
from .observer import Observer
from .plane import MakePlane, StubPlane

__all__ = ["World"]

CHECK_TIME = 0.001
"""How long connecting to an address takes to be refused."""


class World:
    """Time, network and processes. Script it with ``start``, ``kill``, ``pause``, ``run`` and ``faults``."""

    def __init__(self, seed: int, config: Config | None = None, *, fences: bool = False, plane: MakePlane = StubPlane) -> None:
        """``fences``: every process has a supervisor that kills it on its peers' request. ``plane``: makes data planes."""
        self.rng = Random(seed)
        self.now = 100.0
        self.config = config or Config()
        self.faults = Faults()
        self.fences = fences
        self.hosts: dict[str, Host] = {}
        self.at_address: dict[Address, Host] = {}
        self.observers: list[Observer] = []
        self.observe(Checkers())
        self.observe(Ballots())
        self.watch: Callable[[Host, Message], bool] | None = None
        """Sees every message before it is sent; False: it is not sent."""
        self.trace: list[tuple[float, str, str]] = []
        self.messages = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._codec = Codec(self.config.job)
        self._timers: dict[str, float] = {}
        self._plane = plane

    def observe(self, observer: Observer) -> Observer:
        """Show everything from now on to ``observer``, too."""
        observer.world = self
        self.observers.append(observer)
        return observer

    # Script

    def start(
        self,
        name: str,
        *,
        introducers: tuple[str, ...] = (),
        port: int | None = None,
        wants: bool = True,
        resolved: tuple[Address, ...] | None = None,
    ) -> Host:
        """Start a process called ``name``; ``introducers`` are names, the first may found.

        ``resolved``: instead, what a name that stands for several members shows this one by now; who founds is voted.
        """
        port = port if port is not None else 1000 + len(self.hosts)
        ident = f"{self.rng.getrandbits(64):016x}"
        meta = (("supervisor", "sim"),) if self.fences else ()
        member = Member(ident, "10.0.0.1", port, meta)
        addresses = tuple(self._address(n, name, port) for n in introducers) if resolved is None else resolved
        config = replace(self.config, introducers=tuple(f"{host}:{p}" for host, p in addresses))
        founder = not addresses or addresses[0] == member.address
        rng = Random(self.rng.getrandbits(64))
        machine = Machine(config, member, rng, founder=founder, introducers=addresses, voted=resolved is not None)
        host = Host(self, machine, name, self._plane)
        self.hosts[ident] = host
        self.at_address[member.address] = host
        for observer in self.observers:
            observer.started(host)
        machine.start(self.now)
        if wants:
            machine.seek_admission(self.now)
        self._settle(host)
        return host

    def resolve(self, host: Host, addresses: tuple[Address, ...]) -> None:
        """The name shows ``host`` other addresses now."""
        founder = addresses[:1] == (host.machine.member.address,)
        self.inside(host, lambda: host.machine.heed_introducers(addresses, founder, "", self.now))

    def _address(self, name: str, own_name: str, own_port: int) -> Address:
        if name == own_name:
            return ("10.0.0.1", own_port)
        return self.named(name).machine.member.address

    def cluster(self, size: int) -> list[Host]:
        """``size`` members founding together; run until all are active."""
        self.config = replace(self.config, initial_size=size)
        hosts = [self.start("m0", introducers=("m0",))]
        hosts += [self.start(f"m{i}", introducers=("m0",)) for i in range(1, size)]
        self.run_until(lambda: all(len(h.activated) == 1 for h in hosts), 30.0)
        return hosts

    def named(self, name: str) -> Host:
        """The newest process with that name."""
        return [host for host in self.hosts.values() if host.name == name][-1]

    def kill(self, host: Host) -> None:
        """SIGKILL: its connections close, and whoever holds one finds out."""
        host.alive = False
        for observer in self.observers:
            observer.killed(host)
        if self.at_address.get(host.machine.member.address) is host:
            del self.at_address[host.machine.member.address]
        for other in list(self.hosts.values()):
            if other.alive and any(member.id == host.id for member in other.tethers):
                self.after(CHECK_TIME, lambda o=other: self._check_result(o, host.machine.member))  # type: ignore[misc]

    def pause(self, host: Host) -> None:
        """SIGSTOP."""
        host.paused = True
        for observer in self.observers:
            observer.paused(host)

    def resume(self, host: Host) -> None:
        """SIGCONT: what happened to it meanwhile reaches it now."""
        host.paused = False
        for observer in self.observers:
            observer.resumed(host)
        backlog, host.backlog = host.backlog, []
        for action in backlog:
            self.inside(host, action)
        host.machine.tick(self.now)
        self._settle(host)

    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""
        if host.paused and host.alive:
            host.backlog.append(action)
        elif host.running:
            action()
            self._settle(host)

    def isolate(self, group: list[Host], others: list[Host]) -> None:
        """Cut every link between two groups."""
        for one in group:
            for other in others:
                self.faults.cut_both(one.id, other.id)

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.run_until(lambda: False, seconds, expect=False)

    def run_until(self, done: Callable[[], bool], seconds: float, *, expect: bool = True) -> float:
        """Run until ``done`` or for ``seconds``; how long it took. AssertionError where it never came (``expect``)."""
        start, end = self.now, self.now + seconds
        while not done():
            if not self._queue or self._queue[0][0] > end:
                self.now = end
                if expect and not done():
                    raise AssertionError(f"not within {seconds} s: {list(self.hosts.values())}")
                break
            self.now, _, action = heapq.heappop(self._queue)
            action()
        return self.now - start

    # Machinery

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens ``delay`` seconds from now, outside of any process."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action))

    def _wake(self, host: Host, at: float) -> None:
        if self._timers.get(host.id) != at or not host.running:
            return
        host.spins = host.spins + 1 if self.now - host.woken < 1e-5 else 0
        host.woken = self.now
        assert host.spins < 100, f"{host} spins: its deadline stays in the past"
        host.machine.tick(self.now)
        self._settle(host)

    def _arm(self, host: Host) -> None:
        deadline = host.machine.next_deadline()
        if deadline is None or not host.running:
            return
        at = max(deadline, self.now + 1e-6)
        if self._timers.get(host.id) != at:
            self._timers[host.id] = at
            self.after(at - self.now, lambda: self._wake(host, at))

    def _settle(self, host: Host) -> None:
        """Carry out effects until there are none."""
        while effects := host.machine.drain():
            for effect in effects:
                if host.alive:  # it may die in the middle of what it does
                    for observer in self.observers:
                        observer.effect(host, effect)
                    self._carry_out(host, effect)
        for observer in self.observers:
            observer.settled(host)
        self._arm(host)

    def _carry_out(self, host: Host, effect: Effect) -> None:  # noqa: C901, PLR0912 - one case an effect
        match effect:
            case Send(address, message):
                self._send(host, address, message)
            case Check(member):
                self.after(CHECK_TIME, lambda: self._check_result(host, member))
            case Tether(members):
                self._tether(host, members)
            case Fence(member):
                victim = self.hosts[member.id]
                self.after(0.01, lambda: self._fence(host, victim))
            case Freeze(epoch, after_call):
                host.frozen_for = epoch
                host.plane.freeze(epoch, after_call)
            case Installed(view, reports):
                self.trace.append((self.now, host.id, f"install {view.view_id}"))
                host.installed.append((view, dict(reports)))
                host.plane.install(view, dict(reports))
            case Activated(view):
                self.trace.append((self.now, host.id, f"activate {view.view_id}"))
                host.activated.append(view)
                host.plane.activate(view)
            case Stopped(error):
                host.stopped = error
                host.plane.stopped(error)
                self.trace.append((self.now, host.id, f"stop {type(error).__name__}"))
            case Note(_, kind, text):
                host.notes.append((self.now, kind, text))
                if kind == "fork":
                    raise AssertionError(text)
            case Wish(wanted):
                host.wished = wanted
                host.plane.wish(wanted)
            case Quit():
                self.kill(host)
            case _:  # nothing here depends on it
                assert isinstance(effect, (PeerProgress, Stalled))

    def _fence(self, asker: Host, victim: Host) -> None:
        if victim.alive:
            self.kill(victim)
        proof = "killed and reaped by its supervisor"
        self.inside(asker, lambda: asker.machine.evidence(victim.id, EvidenceKind.PROOF, proof, self.now))

    def _tether(self, host: Host, members: tuple[Member, ...]) -> None:
        host.tethers = members
        for member in members:  # connecting to one that is gone is refused at once
            if not self.hosts[member.id].alive:
                self.after(CHECK_TIME, lambda m=member: self._check_result(host, m))  # type: ignore[misc]

    def _check_result(self, host: Host, member: Member) -> None:
        target = self.hosts[member.id]
        reachable = (host.id, member.id) not in self.faults.cut and (member.id, host.id) not in self.faults.cut
        alive: bool | None = None
        if reachable and not target.alive:
            alive = False
        elif reachable and not target.paused and target.stopped is None:
            alive = True
        detail = "connection refused by its host" if alive is False else ""
        self.inside(host, lambda: host.machine.checked(member.id, alive, detail, self.now))

    def _send(self, host: Host, address: Address, message: Message) -> None:
        if self.watch is not None and not self.watch(host, message):
            return
        self.messages += 1
        target = self.at_address.get(address)
        for observer in self.observers:
            observer.sent(host, target, message)
        if target is None or (host.id, target.id) in self.faults.cut or self.rng.random() < self.faults.loss:
            return
        # The real bytes: what the codec cannot carry, or a comparison by identity, shows here too.
        packet = self._codec.encode(Envelope(self.config.job, host.id, host.machine.member.address, message))
        copies = 2 if self.rng.random() < self.faults.duplication else 1
        for _ in range(copies):
            delay = self.rng.uniform(*self.faults.latency)
            if self.rng.random() < self.faults.reordering:
                delay += self.rng.uniform(0, self.faults.late)
            self.after(delay, lambda: self._deliver(target, host, packet))

    def _deliver(self, host: Host, sender: Host, packet: bytes) -> None:
        envelope = self._codec.decode(packet)
        message = envelope.message

        def receive() -> None:
            for observer in self.observers:
                observer.delivered(host, sender, message)
            host.machine.receive(sender.id, envelope.address, message, self.now)

        self.inside(host, receive)
