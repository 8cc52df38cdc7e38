"""A deterministic world of machines: virtual time, a simulated network, processes that crash, pause and restart.

One seed decides everything; two worlds with the same seed and script have the same trace, down to the last bit of every message
(``digest``). What happens is shown to observers, the checkers of the invariants among them; what a process's data plane does is
up to its ``plane``. ``network`` is a message's way, ``clock`` what a process is told the time is, ``faults`` what is wrong with
both, ``scenario`` a script as text.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from ..config import Config
from ..member import Address, Member
from ..messages import Message
from ..protocol.effects import (
    Activated,
    Check,
    Effect,
    Fence,
    Freeze,
    Installed,
    Note,
    Quit,
    Send,
    Stopped,
    Tether,
    Wish,
)
from ..protocol.machine import Machine
from .clock import Clock, allowance
from .connections import Connections
from .faults import Faults
from .host import Host
from .invariants import Jury
from .network import Network, Packet
from .observer import Observer
from .plane import MakePlane, StubPlane
from .trap import Trap, sprung

__all__ = ["World"]

BACK = 1e-6
"""A timer that is due is not set back further than this: time goes on."""


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
        self.network = Network(self)
        self.connections = Connections(self)
        self.traps: list[Trap] = []
        """Crashes at exact messages."""
        self.watch: Callable[[Host, Message], bool] | None = None
        """Sees every message before it is sent; False: it is not sent."""
        self.trace: list[tuple[float, str, str]] = []
        """What every process installed, activated and ended with; ``digest`` has everything."""
        self.messages = 0
        """So many were sent."""
        self.events = 0
        """Messages delivered and timers fired."""
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._names: dict[str, Host] = {}
        self._plane = plane
        self._usual: Faults | None = None
        self._hooks: dict[str, list[Callable[..., None]]] = {name: [] for name in _HOOKS}
        self.jury = Jury()
        """The invariants, checked after every event."""
        self.observe(self.jury)

    def observe(self, observer: Observer) -> Observer:
        """Show everything from now on to ``observer``, too."""
        observer.world = self
        self.observers.append(observer)
        for name, hooks in self._hooks.items():
            if getattr(type(observer), name) is not getattr(Observer, name):
                hooks.append(getattr(observer, name))
        return observer

    def show(self, hook: str, *what: Any) -> None:
        """Call a hook of every observer that has it."""
        for each in self._hooks[hook]:
            each(*what)

    @property
    def digest(self) -> str:
        """A hash over every event so far: when, at which process, and each message's bytes."""
        return self.network.digest.hexdigest()

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
        clock = Clock.draw(rng, self.faults.skew, self.faults.drift * allowance(config.drift))
        host = Host(self, machine, name, self._plane, clock, addresses)
        before = next((old for old in reversed(self.hosts.values()) if old.member.address == member.address), None)
        if before is not None:
            self.faults.inherit(before.id, ident)
        self.hosts[ident] = self._names[name] = self.at_address[member.address] = host
        machine.witness(lambda message: self.show("told_itself", host, message))
        for hook in self._hooks["started"]:
            hook(host)
        machine.start(host.now)
        if wants and not host.plane.seeks:
            machine.seek_admission(host.now)
        self._settle(host)
        return host

    def resolve(self, host: Host, addresses: tuple[Address, ...]) -> None:
        """The name shows ``host`` other addresses now."""
        founder = addresses[:1] == (host.member.address,)
        self.inside(host, lambda: host.machine.heed_introducers(addresses, founder, "", host.now))

    def _address(self, name: str, own_name: str, own_port: int) -> Address:
        if name == own_name:
            return ("10.0.0.1", own_port)
        return self.named(name).member.address

    def cluster(self, size: int) -> list[Host]:
        """``size`` members founding together; run until all are active."""
        hosts = self.founders(size)
        self.run_until(lambda: all(len(h.activated) == 1 for h in hosts), 30.0)
        return hosts

    def founders(self, size: int) -> list[Host]:
        """Start ``size`` processes, ``m0`` first, that are to found together."""
        self.config = replace(self.config, initial_size=size)
        return [self.start(f"m{i}", introducers=("m0",)) for i in range(size)]

    def named(self, name: str) -> Host:
        """The newest process with that name; KeyError where there was none."""
        return self._names[name]

    def find(self, name: str) -> Host | None:
        """The newest process with that name, None where there was none."""
        return self._names.get(name)

    def kill(self, host: Host) -> None:
        """SIGKILL: its connections close, and whoever holds one finds out."""
        host.alive = False
        for hook in self._hooks["killed"]:
            hook(host)
        if self.at_address.get(host.member.address) is host:
            del self.at_address[host.member.address]
        self.connections.closed(host)

    def pause(self, host: Host) -> None:
        """SIGSTOP."""
        host.paused = True
        for hook in self._hooks["paused"]:
            hook(host)

    def resume(self, host: Host) -> None:
        """SIGCONT: what happened to it meanwhile reaches it now."""
        host.paused = False
        for hook in self._hooks["resumed"]:
            hook(host)
        self._catch_up(host)

    def stall(self, host: Host, seconds: float) -> None:
        """The agent's loop is held up: the process lives, but what reaches the agent waits for ``seconds``."""
        host.stalls += 1
        self.show("paused", host)
        self.at(seconds, self._unstall, host)

    def _unstall(self, host: Host) -> None:
        host.stalls -= 1
        self.show("resumed", host)
        self._catch_up(host)

    def _catch_up(self, host: Host) -> None:
        if not host.awake:
            return
        backlog, host.backlog = host.backlog, []
        for action in backlog:
            self.inside(host, action)
        if host.awake:
            host.machine.tick(host.now)
            self._settle(host)

    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""
        if host.awake:
            action()
            self._settle(host)
        elif host.alive and host.stopped is None:
            host.backlog.append(action)

    def isolate(self, group: list[Host], others: list[Host]) -> None:
        """Cut every link between two groups."""
        for one in group:
            for other in others:
                self.faults.cut_both(one.id, other.id)

    def jump(self, host: Host, seconds: float) -> None:
        """The clock of ``host`` steps forward."""
        host.clock.jump(seconds)
        self.show("jumped", host, seconds)

    def clog(self, host: Host) -> None:
        """Everything to and from ``host`` is held back."""
        for other in self.at_address.values():
            if other is not host:
                self.faults.clogged |= {(host.id, other.id), (other.id, host.id)}

    def unclog(self, host: Host) -> None:
        """What was held back on the links of ``host`` arrives in a burst."""
        links = {link for link in self.faults.clogged if host.id in link}
        self.faults.clogged -= links
        self.network.release(links)

    def heal(self) -> None:
        """A perfect network from now on: nothing is wrong, held back, late, or about to crash."""
        self.faults.heal()
        if self._usual is not None:
            self.faults.latency, self.faults.spread, self._usual = self._usual.latency, self._usual.spread, None
        self.traps.clear()
        self.network.release()

    def delay(self, weather: Faults) -> None:
        """Messages take as long as in ``weather`` until ``heal``."""
        if self._usual is None:
            self._usual = replace(self.faults)
        self.faults.latency, self.faults.spread = weather.latency, weather.spread

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        end, queue, pop = self.now + seconds, self._queue, heapq.heappop
        while queue and queue[0][0] <= end:
            self.now, _, action, arguments = pop(queue)
            action(*arguments)
        self.now = end

    def run_until(self, done: Callable[[], bool], seconds: float, *, expect: bool = True) -> float:
        """Run until ``done`` or for ``seconds``; how long it took. AssertionError where it never came (``expect``)."""
        start, end = self.now, self.now + seconds
        queue, pop = self._queue, heapq.heappop
        while not done():
            if not queue or queue[0][0] > end:
                self.now = end
                if expect and not done():
                    raise AssertionError(f"not within {seconds} s: {list(self.hosts.values())}")
                break
            self.now, _, action, arguments = pop(queue)
            action(*arguments)
        return self.now - start

    # Machinery

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens ``delay`` seconds from now, outside of any process."""
        self.at(delay, action)

    def at(self, delay: float, action: Callable[..., None], *arguments: Any) -> None:
        """``action(*arguments)`` happens ``delay`` seconds from now, outside of any process."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, action, arguments))

    def _wake(self, host: Host, at: float) -> None:
        if host.armed != at:
            return
        host.armed = None
        if not host.awake or host.due is None:
            return
        if host.due > self.now:  # its deadline has moved meanwhile
            self._wake_at(host, host.due)
            return
        host.spins = host.spins + 1 if self.now - host.woken < 10 * BACK else 0
        host.woken = self.now
        assert host.spins < 100, f"{host} spins: its deadline stays in the past"
        self.events += 1
        self.network.record(0, host)
        host.machine.tick(host.now)
        self._settle(host)

    def _arm(self, host: Host) -> None:
        deadline = host.machine.next_deadline()
        if deadline is None or not host.awake:
            host.due = None
            return
        due = host.due = max(host.clock.when(deadline), self.now + BACK)
        if host.armed is None or host.armed > due:
            self._wake_at(host, due)

    def _wake_at(self, host: Host, at: float) -> None:
        if at != float("inf"):
            host.armed = at
            self._count += 1
            heapq.heappush(self._queue, (at, self._count, self._wake, (host, at)))

    def _settle(self, host: Host) -> None:
        """Carry out effects until there are none."""
        hooks = self._hooks["effect"]
        while effects := host.machine.drain():
            for effect in effects:
                if host.alive:  # it may die in the middle of what it does
                    for hook in hooks:
                        hook(host, effect)
                    self._carry_out(host, effect)
        for hook in self._hooks["settled"]:
            hook(host)
        self._arm(host)

    def _carry_out(self, host: Host, effect: Effect) -> None:  # noqa: C901 - one case an effect
        match effect:
            case Send(address, message):
                self._send(host, address, message)
            case Check(member):
                self.connections.check(host, member)
            case Tether(members):
                self.connections.tether(host, members)
            case Fence(member):
                self.connections.fence(host, member)
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
            # PeerProgress, Stalled: nothing here depends on them

    # Messages

    def _send(self, host: Host, address: Address, message: Message) -> None:
        trap = sprung(self.traps, host.name, type(message).__name__) if self.traps else None
        if trap is not None and trap.before:
            self.kill(host)
            return
        target = self.at_address.get(address)
        if self.watch is not None and not self.watch(host, message):
            if target is not None:
                self.show("lost", host, target, message)
            return
        self.messages += 1
        for hook in self._hooks["sent"]:
            hook(host, target, message)
        self.network.carry(host, target, address, message)
        if trap is not None:
            self.kill(host)

    def arrive(self, address: Address, sender: Host, packet: Packet) -> None:
        """A packet reaches an address, and whoever has it by now."""
        host = self.at_address.get(address)
        if host is None or host.stopped is not None:
            return
        if host.awake:
            self._receive(host, sender, packet)
            self._settle(host)
        else:
            host.backlog.append(lambda: self._receive(host, sender, packet))

    def _receive(self, host: Host, sender: Host, packet: Packet) -> None:
        envelope = packet.envelope(self.network.codec)
        self.events += 1
        self.network.record(1, host, len(packet.data))
        for hook in self._hooks["delivered"]:
            hook(host, sender, envelope.message)
        host.machine.receive(sender.id, envelope.address, envelope.message, host.now)


_HOOKS = (
    "started",
    "killed",
    "paused",
    "resumed",
    "jumped",
    "sent",
    "told_itself",
    "lost",
    "late",
    "refused",
    "delivered",
    "effect",
    "settled",
)
