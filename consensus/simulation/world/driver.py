"""The driver of all simulated machines: wakes them when they are due, hands over what reaches them, does what they want done.

What ``runtime/driver.py`` is to one machine in real time, and as simple: it decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from ...border import Activated, Installed, Order, PeerProgress, Stalled, Stopped
from ...member import Address
from ...messages import Message, Piece
from ...protocol.state.effects import Ask, Check, Effect, Fence, KeepConnections, Note, Quit, Send
from .connections import Connections
from .faults import triggered
from .host import Host
from .network import Network, Packet
from .state import State
from .store_requests import StoreRequests

BACK = 1e-6
"""A timer that is due is not set back further than this: time goes on."""


class Driver:
    """Whatever happens inside of a process happens here, and its effects are carried out before anything else happens."""

    def __init__(self, world: State, network: Network, connections: Connections, store_requests: StoreRequests | None) -> None:
        self._world = world
        self._network = network
        self._connections = connections
        self._store_requests = store_requests

    def catch_up(self, host: Host) -> None:
        """What happened to it while it was not awake reaches it now."""
        if not host.awake:
            return
        for action in host.caught_up():
            self.inside(host, action)
        if host.awake:
            host.machine.tick(host.now)
            self.settle(host)

    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""
        if host.awake:
            action()
            self.settle(host)
        elif host.alive and host.stopped is None:
            host.backlog.append(action)

    # Waking

    def _wake(self, host: Host, at: float) -> None:
        if host.armed != at:
            return
        host.arm(None)
        if not host.awake or host.due is None:
            return
        if host.due > self._world.now:  # its deadline has moved meanwhile
            self._wake_at(host, host.due)
            return
        spins = host.wake(self._world.now, soon=10 * BACK)
        assert spins < 100, f"{host} spins: its deadline stays in the past"
        self._world.happened(0, host)
        host.machine.tick(host.now)
        self.settle(host)

    def _arm(self, host: Host) -> None:
        deadline = host.machine.next_deadline()
        if deadline is None or not host.awake:
            host.need(None)
            return
        due = max(host.clock.when(deadline), self._world.now + BACK)
        host.need(due)
        if host.armed is None or host.armed > due:
            self._wake_at(host, due)

    def _wake_at(self, host: Host, at: float) -> None:
        if at != float("inf"):
            host.arm(at)
            self._world.when(at, self._wake, host, at)

    def settle(self, host: Host) -> None:
        """Carry out effects until there are none."""
        observers = self._world.observers
        while effects := host.machine.drain():
            for effect in effects:
                if host.alive:  # it may die in the middle of what it does
                    observers.effect(host, effect)
                    self._carry_out(host, effect)
        observers.settled(host)
        self._arm(host)

    def _carry_out(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send(address, message):
                self._send(host, address, message)
            case Ask(request):
                assert self._store_requests is not None, f"{host} asks a store that there is not: {request}"
                self._store_requests.ask(host, request)
            case Check(member):
                self._connections.check(host, member)
            case KeepConnections(members):
                self._connections.keep(host, members)
            case Fence(member):
                self._connections.fence(host, member)
            case Note(_, kind, text):
                host.notes.append((self._world.now, kind, text))
                if kind == "fork":
                    raise AssertionError(text)
            case Quit():
                self._world.kill(host)
            case PeerProgress() | Stalled():
                pass  # nothing here depends on them
            case _:
                self._order(host, effect)

    def _order(self, host: Host, order: Order) -> None:
        """Note what matters to scripts and observers, and hand it to the data plane."""
        host.take(order)
        match order:
            case Installed(view, _):
                self._world.trace.append((self._world.now, host.id, f"install {view.view_id}"))
            case Activated(view):
                self._world.trace.append((self._world.now, host.id, f"activate {view.view_id}"))
            case Stopped(error):
                self._world.trace.append((self._world.now, host.id, f"stop {type(error).__name__}"))
        host.plane.handle(order)

    # Messages

    def _send(self, host: Host, address: Address, message: Message) -> None:
        failpoint = triggered(self._world.failpoints, host.name, type(message).__name__) if self._world.failpoints else None
        if failpoint is not None and failpoint.before:
            self._world.kill(host)
            return
        target = self._world.at_address.get(address)
        if self._world.watch is not None and not self._world.watch(host, message):
            if target is not None:
                self._world.show("lost", host, target, message)
            return
        self._world.sent()
        self._world.observers.sent(host, target, message)
        self._network.carry(host, target, address, message)
        if failpoint is not None:
            self._world.kill(host)

    def arrive(self, address: Address, sender: Host, packet: Packet) -> None:
        """A packet reaches an address, and whoever has it by now."""
        host = self._world.at_address.get(address)
        if host is None or host.stopped is not None:
            return
        if host.awake:
            self._receive(host, sender, packet)
            self.settle(host)
        else:
            host.backlog.append(lambda: self._receive(host, sender, packet))

    def _receive(self, host: Host, sender: Host, packet: Packet) -> None:
        network = self._network
        envelope = packet.envelope(network.codec)
        self._world.happened(1, host, len(packet.data))
        if isinstance(envelope.message, Piece):
            whole = network.completed(host, sender, envelope.message)
            if whole is None:
                return
            envelope = whole.envelope(network.codec)
        self._world.observers.delivered(host, sender, envelope.message)
        host.machine.receive(sender.id, envelope.address, envelope.message, host.now)
