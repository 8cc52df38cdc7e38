"""One simulated process lifetime: a machine, its data plane, its clock, what it did and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ..errors import StoppedError
from ..member import Address, Member
from ..pieces import Pieces
from ..protocol.machine import Machine
from ..view import View
from .clock import Clock
from .plane import MakePlane

if TYPE_CHECKING:
    from .world import World

__all__ = ["Host"]


class Host:
    """A process. The world owns all of it; scripts and observers only look."""

    def __init__(
        self, world: World, machine: Machine, name: str, plane: MakePlane, clock: Clock, introducers: tuple[Address, ...]
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
        self.tethers: tuple[Member, ...] = ()
        self.checks: set[str] = set()
        """Whom it asks over TCP right now."""
        self.activated: list[View] = []
        self.installed: list[tuple[View, Mapping[str, bytes]]] = []
        self.frozen_for = 0
        self.stopped: StoppedError | None = None
        self.notes: list[tuple[float, str, str]] = []
        self.wished = False
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
        self.machine.leave(None, self.now)

    def fail(self, suspects: tuple[str, ...]) -> None:
        """Its data plane fails and blames ``suspects`` (ids). Call it inside the process."""
        self.machine.hint(suspects, self.now)

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else str(self.stopped or "up")
        epoch = 0 if self.machine.view is None else self.machine.view.epoch
        return f"<{self.name} {self.id[:4]} epoch {epoch} {state}>"
