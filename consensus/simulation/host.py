"""One simulated process lifetime: a machine, its data plane, what it did and what became of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import StoppedError
from ..member import Member
from ..protocol.machine import Machine
from ..view import View
from .plane import MakePlane

if TYPE_CHECKING:
    from .world import World

__all__ = ["Host"]


class Host:
    """A process. The world owns all of it; scripts and observers only look."""

    def __init__(self, world: World, machine: Machine, name: str, plane: MakePlane) -> None:
        self.world = world
        self.machine = machine
        self.name = name
        self.alive = True
        self.paused = False
        self.backlog: list[Callable[[], None]] = []
        """What happened to it while it was paused."""
        self.tethers: tuple[Member, ...] = ()
        self.activated: list[View] = []
        self.installed: list[tuple[View, dict[str, bytes]]] = []
        self.frozen_for = 0
        self.stopped: StoppedError | None = None
        self.notes: list[tuple[float, str, str]] = []
        self.wished = False
        self.woken = 0.0
        self.spins = 0
        self.plane = plane(self)

    @property
    def id(self) -> str:
        """The member id."""
        return self.machine.member.id

    @property
    def now(self) -> float:
        """What this process's clock shows."""
        return self.world.now

    @property
    def running(self) -> bool:
        """Alive, not paused, not stopped."""
        return self.alive and not self.paused and self.stopped is None

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """``action`` happens inside this process ``delay`` seconds from now, unless it is dead or stopped then."""
        self.world.after(delay, lambda: self.world.inside(self, action))

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else str(self.stopped or "up")
        return f"<{self.name} {self.id[:4]} epoch {self.machine.status()['epoch']} {state}>"
