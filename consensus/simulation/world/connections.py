"""What processes learn over TCP and from supervisors: liveness connections that close, checks, fencing."""

from __future__ import annotations

from ...member import Member
from ...messages import EvidenceKind
from ...protocol.state.inputs import Accusation, Checked
from .host import Host
from .network import Network
from .state import State
from .timeline import allowance

CHECK_TIME = 0.001
"""How long connecting to an address takes to be refused."""

CHECK_TIMEOUT = 0.5
"""Seconds that a connection attempt without an answer takes."""

FENCE_TIME = 0.01
"""How long a supervisor takes to kill a process and to reap it."""


class Connections:
    """Checks under way. What an attempt finds depends on the faults at its end (or when it is given up)."""

    def __init__(self, world: State, network: Network) -> None:
        self._world = world
        self._network = network

    def closed(self, victim: Host) -> None:
        """``victim`` died: whoever holds a liveness connection to it asks again."""
        for other in list(self._world.hosts.values()):
            if other.alive and any(member.id == victim.id for member in other.liveness_connections):
                self.check(other, victim.member)

    def keep(self, host: Host, members: tuple[Member, ...]) -> None:
        """``host`` holds a liveness connection to each of ``members``, and to nobody else."""
        host.keep(members)
        for member in members:  # connecting to one that is gone is refused at once
            if not self._world.hosts[member.id].alive:
                self.check(host, member)

    def check(self, host: Host, member: Member) -> None:
        """Ask ``member`` once; a question already under way serves as well."""
        if member.id not in host.checks:
            host.checks.add(member.id)
            self._world.at(CHECK_TIME, self._connect, host, member)

    def _connect(self, host: Host, member: Member) -> None:
        alive, detail = self._find(host, member)
        if alive is None:
            self._world.at(CHECK_TIMEOUT - CHECK_TIME, self._give_up, host, member)
        else:
            self._tell(host, member, alive, detail)

    def _give_up(self, host: Host, member: Member) -> None:
        alive, detail = self._find(host, member)  # it may have woken up meanwhile, or died
        self._tell(host, member, alive, detail)

    def _tell(self, host: Host, member: Member, alive: bool | None, detail: str) -> None:
        host.checks.discard(member.id)
        # The host of a process that is stopped, or held up, accepts connections for it.
        there = self._world.at_address.get(member.address)
        listens = there is not None and self._network.reachable(host.id, there.id)
        self._world.inside(host, lambda: host.machine.handle(Checked(member.id, alive, detail, listens=listens), host.now))

    def _find(self, asker: Host, member: Member) -> tuple[bool | None, str]:
        """What ``asker`` finds at ``member``'s address: it (True), proof that it is gone (False), or nothing (None)."""
        world = self._world
        there = world.at_address.get(member.address)
        other = member.id if there is None else there.id
        if not self._network.connects(asker.id, other, CHECK_TIMEOUT):
            return None, ""
        if there is None or (asker.id, other) in world.faults.refused:
            trusted = world.config.trust_refused
            if trusted and there is not None:
                world.show("refused", asker, there)
            return (False, "connection refused by its host") if trusted else (None, "")
        if not there.awake:
            return None, ""
        if there.id != member.id:
            return False, f"another lifetime ({there.id[:6]}) answers at its address"
        return True, ""

    def fence(self, asker: Host, member: Member) -> None:
        """Ask the supervisor of ``member`` to kill it."""
        self._world.at(FENCE_TIME, self._fenced, asker, self._world.hosts[member.id])

    def _fenced(self, asker: Host, victim: Host) -> None:
        world = self._world
        if victim.alive:
            if not self._network.reachable(asker.id, victim.id):
                return  # its supervisor lives on its host
            world.kill(victim)
        if world.faults.reaping:
            world.at(world.faults.reaping * world.rng.random(), self._reaped, asker, victim, world.now)
        else:
            self._reaped(asker, victim, world.now)

    def _reaped(self, asker: Host, victim: Host, killed: float) -> None:
        """The supervisor's answer; its clock is as fast as clocks may be."""
        world = self._world
        age = (world.now - killed) * (1.0 + world.faults.drift * allowance(world.config.drift))
        said = Accusation(victim.id, EvidenceKind.PROOF, "killed and reaped by its supervisor", age)
        world.inside(asker, lambda: asker.machine.handle(said, asker.now))
