"""A deterministic world of machines: virtual time, a simulated network, processes that crash, pause and restart.

One seed decides everything. Two worlds with the same seed and script have the same trace, down to the last bit of every message
(``digest``). What happens is shown to observers: whoever wants the invariants checked passes a world to ``invariants.judged``.
What a process's data plane does is up to its ``plane``. Here is what a script does to a world; its parts, below ``State``:

* ``timeline`` is the order of events, and what time a process is told;
* ``driver`` runs the machines, ``network`` is a message's way, ``connections`` are liveness connections and checks;
* ``store_requests`` is what is asked of the shared store;
* ``faults`` is what is wrong with all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from ...border import SeekAdmission
from ...config import Config, Policy
from ...errors import StoppedError
from ...member import Address, Member
from ...protocol.machine import Machine
from ...protocol.state.inputs import Died, Resolved
from .connections import Connections
from .driver import Driver
from .faults import Faults
from .host import Host, MakePlane, StubPlane, some
from .network import Network, Packet
from .state import State
from .store import Character
from .store_requests import MakeExecutor, StoreRequests, real_executor
from .timeline import Clock, allowance


class World(State):
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
        executor: MakeExecutor = real_executor,
        facts: Callable[[str], Mapping[str, str]] = lambda _name: {},
    ) -> None:
        """``fences``: every process has a supervisor that kills it on its peers' request. ``plane``: makes data planes.
        ``facts``: what a process with that name advertises (``Member.meta``), of its cohort, say.

        ``store``: of what kind the shared store is, where the policy needs one; ``notices``: whether it tells of changes;
        ``executor``: makes those who carry out what processes ask of it.
        """
        super().__init__(seed, config or Config())
        self.fences = fences
        self.network = Network(self, self._arrive)
        self.connections = Connections(self, self.network)
        stored = self.config.policy is Policy.STORAGE
        self.store_requests = StoreRequests(self, store, executor, notices=notices) if stored else None
        """The shared store, and what is asked of it."""
        self.driver = Driver(self, self.network, self.connections, self.store_requests)
        self._names: dict[str, Host] = {}
        self._latest: dict[Address, Host] = {}
        """The last process that was started at each address, dead or alive."""
        self._plane = plane
        self._facts = facts
        self._usual: Faults | None = None

    def _arrive(self, address: Address, sender: Host, packet: Packet) -> None:
        self.driver.arrive(address, sender, packet)

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
        meta = (*((("supervisor", "sim"),) if self.fences else ()), *sorted(self._facts(name).items()))
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
        machine.witness(lambda message: self.observers.told_itself(host, message))
        self.show("started", host)
        if self.store_requests is not None:
            self.store_requests.begin(host)
        machine.start(host.now)
        if wants and not host.plane.seeks:
            machine.handle(SeekAdmission(), host.now)
        self.driver.settle(host)
        return host

    def resolve(self, host: Host, addresses: tuple[Address, ...]) -> None:
        """The name shows ``host`` other addresses now."""
        founder = addresses[:1] == (host.member.address,)
        self.inside(host, lambda: host.machine.handle(Resolved(addresses, founder, ""), host.now))

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
        host.die()
        self.show("killed", host)
        if self.at_address.get(host.member.address) is host:
            del self.at_address[host.member.address]
        self.connections.closed(host)

    def bereave(self, host: Host) -> None:
        """Its program is killed; its agent outlives that, tells the others, and ends."""
        error = StoppedError("its training process ended")
        self.inside(host, lambda: host.machine.handle(Died(str(error), error), host.now))

    def pause(self, host: Host) -> None:
        """SIGSTOP."""
        host.pause()
        self.show("paused", host)

    def resume(self, host: Host) -> None:
        """SIGCONT: what happened to it meanwhile reaches it now."""
        host.resume()
        self.show("resumed", host)
        self.driver.catch_up(host)

    def stall(self, host: Host, seconds: float) -> None:
        """The agent's loop is held up: the process lives, but what reaches the agent waits for ``seconds``."""
        host.stall()
        self.show("paused", host)
        self.at(seconds, self._unstall, host)

    def _unstall(self, host: Host) -> None:
        host.unstall()
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
        self.failpoints.clear()
        if self.store_requests is not None:
            self.store_requests.tidy()
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
