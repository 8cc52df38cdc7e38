"""A deterministic world of machines: virtual time, a simulated network, processes that crash, pause and restart.

One seed decides everything; two worlds with the same seed and script have the same trace, down to the last bit of every message
(``digest``). What happens is shown to observers, the checkers of the invariants among them; what a process's data plane does is
up to its ``plane``. ``timeline`` is the order of events, ``driver`` runs the machines, ``network`` is a message's way,
``errands`` is what is asked of the shared store, ``clock`` what a process is told the time is, ``faults`` what is wrong with
all of these, ``scenario`` a script as text. Here is what a script does to a world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from ..config import Config, Policy
from ..member import Address, Member
from ..messages import Message
from ..protocol.machine import Machine
from .clock import Clock, allowance
from .connections import Connections
from .driver import Driver
from .errands import Errands, MakeClerk, real_clerk
from .faults import Faults
from .host import Host
from .invariants import Jury
from .network import Network
from .observer import Observer
from .plane import MakePlane, StubPlane
from .some import some
from .store import Character
from .timeline import Timeline
from .trap import Trap

__all__ = ["World"]


class World(Timeline):
    """Time, network and processes. Script it with ``start``, ``kill``, ``pause``, ``run`` and ``faults``."""

    def __init__(
        self,
        seed: int,
        config: Config | None = None,
        *,
        fences: bool = False,
        plane: MakePlane = StubPlane,
        store: Character = Character.ATOMIC,
        notices: bool = True,
        clerk: MakeClerk = real_clerk,
    ) -> None:
        """``fences``: every process has a supervisor that kills it on its peers' request. ``plane``: makes data planes.

        ``store``: of what kind the shared store is, where the policy needs one; ``notices``: whether it tells of changes;
        ``clerk``: makes those who carry out what processes ask of it.
        """
        super().__init__()
        self.rng = Random(seed)
        self.config = config or Config()
        self.faults = Faults()
        self.fences = fences
        self.hosts: dict[str, Host] = {}
        self.at_address: dict[Address, Host] = {}
        self.observers: list[Observer] = []
        self.network = Network(self)
        self.connections = Connections(self)
        self.driver = Driver(self)
        self.errands = Errands(self, store, clerk, notices=notices) if self.config.policy is Policy.STORAGE else None
        """The shared store, and what is asked of it."""
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
        self._names: dict[str, Host] = {}
        self._latest: dict[Address, Host] = {}
        """Who was started at each address last, dead or alive."""
        self._plane = plane
        self._usual: Faults | None = None
        self.hooks: dict[str, list[Callable[..., None]]] = {name: [] for name in _HOOKS}
        self.jury = Jury()
        """The invariants, checked after every event."""
        self.observe(self.jury)

    def observe(self, observer: Observer) -> Observer:
        """Show everything from now on to ``observer``, too."""
        observer.world = self
        self.observers.append(observer)
        for name, hooks in self.hooks.items():
            if getattr(type(observer), name) is not getattr(Observer, name):
                hooks.append(getattr(observer, name))
        return observer

    def show(self, hook: str, *what: Any) -> None:
        """Call a hook of every observer that has it."""
        for each in self.hooks[hook]:
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
        if (before := self._latest.get(member.address)) is not None:
            self.faults.inherit(before.id, ident)
        self._latest[member.address] = host
        self.hosts[ident] = self._names[name] = self.at_address[member.address] = host
        machine.witness(lambda message: self.show("told_itself", host, message))
        for hook in self.hooks["started"]:
            hook(host)
        if self.errands is not None:
            self.errands.begin(host)
        machine.start(host.now)
        if wants and not host.plane.seeks:
            machine.seek_admission(host.now)
        self.driver.settle(host)
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
        self.run_until_each(hosts, lambda host: bool(host.activated), 30.0)
        return hosts

    def founders(self, size: int, *, alone: bool = False) -> list[Host]:
        """Start ``size`` processes, ``m0`` first, that are to found together; ``alone``: nobody knows of anybody."""
        self.config = replace(self.config, initial_size=size)
        return [self.start(f"m{i}", introducers=() if alone else ("m0",)) for i in range(size)]

    def named(self, name: str) -> Host:
        """The newest process with that name; KeyError where there was none."""
        return self._names[name]

    def find(self, name: str) -> Host | None:
        """The newest process with that name, None where there was none."""
        return self._names.get(name)

    def kill(self, host: Host) -> None:
        """SIGKILL: its connections close, and whoever holds one finds out."""
        host.alive = False
        for hook in self.hooks["killed"]:
            hook(host)
        if self.at_address.get(host.member.address) is host:
            del self.at_address[host.member.address]
        self.connections.closed(host)

    def pause(self, host: Host) -> None:
        """SIGSTOP."""
        host.paused = True
        for hook in self.hooks["paused"]:
            hook(host)

    def resume(self, host: Host) -> None:
        """SIGCONT: what happened to it meanwhile reaches it now."""
        host.paused = False
        for hook in self.hooks["resumed"]:
            hook(host)
        self.driver.catch_up(host)

    def stall(self, host: Host, seconds: float) -> None:
        """The agent's loop is held up: the process lives, but what reaches the agent waits for ``seconds``."""
        host.stalls += 1
        self.show("paused", host)
        self.at(seconds, self._unstall, host)

    def _unstall(self, host: Host) -> None:
        host.stalls -= 1
        self.show("resumed", host)
        self.driver.catch_up(host)

    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""
        self.driver.inside(host, action)

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
        if self.errands is not None:
            self.errands.tidy()
        self.network.release()

    def delay(self, weather: Faults) -> None:
        """Messages take as long as in ``weather`` until ``heal``."""
        if self._usual is None:
            self._usual = replace(self.faults)
        self.faults.latency, self.faults.spread = weather.latency, weather.spread

    def shown(self) -> str:
        """See ``Timeline``. Whoever is behind comes first."""
        epochs = {key: host.activated[-1].epoch if host.activated else 0 for key, host in self.hosts.items()}
        return some([self.hosts[key] for key in sorted(epochs, key=lambda key: epochs[key])])


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
    "asked",
    "answered",
    "stored",
    "withheld",
    "delivered",
    "effect",
    "settled",
)
