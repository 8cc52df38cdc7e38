"""One simulated process lifetime: a machine, its data plane, its clock, what it did and what became of it.

Its data plane is behind the machine's effects ``Freeze``, ``Installed`` and ``Activated``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ...border import Activated, BoundaryRequest, Built, Flushed, Freeze, Hint, Installed, Leave, Order, Stopped
from ...config import Config
from ...errors import StoppedError
from ...member import Address, Member
from ...protocol.machine import Machine
from ...view import View
from ...wire.pieces import Pieces
from .timeline import Clock

BUILD_TIME = 0.002
"""Seconds that building a group takes."""


class Surroundings(Protocol):
    """What a process needs of its world."""

    now: float
    config: Config
    hosts: dict[str, Host]

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens ``delay`` seconds from now, outside of any process."""

    def inside(self, host: Host, action: Callable[[], None]) -> None:
        """Something happens inside a process, or waits until it is resumed."""


class SimulatedPlane(Protocol):
    """``DataPlane`` in virtual time: answers through ``host.machine.handle``, later ones through ``host.after``."""

    seeks: bool
    """Whether it seeks admission by itself, once it is ready to take part."""

    def handle(self, order: Order) -> None:
        """Carry out an order (see ``border``); where nobody can depend on one it does not come."""


MakePlane = Callable[["Host"], SimulatedPlane]


class Host:
    """A process. The world owns all of it; scripts and observers only look."""

    def __init__(
        self, world: Surroundings, machine: Machine, name: str, plane: MakePlane, clock: Clock, introducers: tuple[Address, ...]
    ) -> None:
        self.world = world
        self.machine = machine
        self.member = machine.member
        self.id = machine.member.id
        self.name = name
        self.clock = clock
        self.introducers = introducers
        self.index = len(world.hosts)
        """How many processes were started before it."""
        self.alive = True
        self.paused = False
        self.stalls = 0
        """How many stalls hold its agent up right now."""
        self.backlog: list[Callable[[], None]] = []
        """What happened to it while it was paused or its agent stalled."""
        self.pieces = Pieces()
        """What it has got of packets that are too long for one message."""
        self.liveness_connections: tuple[Member, ...] = ()
        """The members that it holds one to."""
        self.checks: set[str] = set()
        """Whom it asks over TCP right now."""
        self.activated: list[View] = []
        self.installed: list[tuple[View, Mapping[str, bytes]]] = []
        self.frozen_for = 0
        self.stopped: StoppedError | None = None
        self.notes: list[tuple[float, str, str]] = []
        self.boundary_requested = False
        self.leaving = False
        """Whether its data plane tells the others that it leaves, which they may hear of before its own agent."""
        self.due: float | None = None
        """When (true time) its machine wants to be ticked."""
        self.armed: float | None = None
        """When it is woken; at the latest when it is due."""
        self.woken = 0.0
        self.spins = 0
        self.plane = plane(self)

    @property
    def now(self) -> float:
        """What this process's clock shows."""
        return self.clock.shows(self.world.now)

    @property
    def running(self) -> bool:
        """Alive, not paused, not stopped."""
        return self.alive and not self.paused and self.stopped is None

    @property
    def awake(self) -> bool:
        """Running, and its agent handles what reaches it."""
        return self.alive and not self.paused and not self.stalls and self.stopped is None

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens inside this process ``delay`` seconds from now, unless it is dead or stopped then."""
        self.world.after(delay, lambda: self.world.inside(self, action))

    def leave(self) -> None:
        """It wants to leave. Call it inside the process (``World.inside``)."""
        self.machine.handle(Leave(None), self.now)

    def fail(self, suspects: tuple[str, ...]) -> None:
        """Its data plane fails and blames ``suspects`` (ids). Call it inside the process."""
        self.machine.handle(Hint(suspects), self.now)

    # What its world does to it

    def die(self) -> None:
        """SIGKILL."""
        self.alive = False

    def pause(self) -> None:
        """SIGSTOP."""
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.paused = False

    def stall(self) -> None:
        """Something holds its agent up."""
        self.stalls += 1

    def unstall(self) -> None:
        """One of those does no more."""
        self.stalls -= 1

    def caught_up(self) -> list[Callable[[], None]]:
        """What had to wait, which is no backlog any more."""
        backlog, self.backlog = self.backlog, []
        return backlog

    def keep(self, members: tuple[Member, ...]) -> None:
        """It holds a liveness connection to each of ``members``, and to nobody else."""
        self.liveness_connections = members

    def need(self, due: float | None) -> None:
        """When (true time) its machine wants to be ticked."""
        self.due = due

    def arm(self, at: float | None) -> None:
        """When it is woken next."""
        self.armed = at

    def wake(self, now: float, *, soon: float) -> int:
        """It is woken: how often that has happened by now, each time within ``soon`` seconds of the one before."""
        self.spins = self.spins + 1 if now - self.woken < soon else 0
        self.woken = now
        return self.spins

    def take(self, order: Order) -> None:
        """Note what an order to its data plane says of it."""
        match order:
            case Freeze(epoch, _):
                self.frozen_for = epoch
            case Installed(view, reports):
                self.installed.append((view, reports))
            case Activated(view):
                self.activated.append(view)
            case Stopped(error):
                self.stopped = error
            case BoundaryRequest(wanted):
                self.boundary_requested = wanted

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else str(self.stopped or "up")
        epoch = 0 if self.machine.view is None else self.machine.view.epoch
        return f"<{self.name} {self.id[:4]} epoch {epoch} {state}>"


class StubPlane:
    """Reports at once, builds in ``BUILD_TIME``, and never calls. Its report says who wrote it for which epoch."""

    seeks = False

    def __init__(self, host: Host) -> None:
        self._host = host

    def handle(self, order: Order) -> None:
        """See ``SimulatedPlane``."""
        host = self._host
        match order:
            case Freeze(epoch, _):  # there are no calls to wait for
                host.machine.handle(Flushed(epoch, f"{host.id}:{epoch}".encode()), host.now)
            case Installed(view, reports):
                mine = f"{host.id}:{view.epoch}".encode()
                assert reports.get(host.id, mine) == mine, f"a report of another epoch in {view}: {reports[host.id]!r}"
                host.after(BUILD_TIME, lambda: host.machine.handle(Built(view.view_id), host.now))


SHOWN = 10


def some(items: Sequence[object]) -> str:
    """The first ``SHOWN`` of ``items``, and how many more there are: there may be ten thousand, and nobody reads them all."""
    more = f" and {len(items) - SHOWN:,} more" if len(items) > SHOWN else ""
    return ", ".join(str(item) for item in items[:SHOWN]) + more
