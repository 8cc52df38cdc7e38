"""The ``Consensus`` of a simulated process: what its data plane says reaches the machine a moment later, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from consensus import Consensus, DataPlane, Member, Mode, Source, View
from consensus.border import Boundary, Built, Flushed, Hint, Leave, Report, SeekAdmission
from consensus.progress import NOWHERE, Progress
from consensus.simulation import Host

PIPE = 0.0003
"""Seconds that a word between the agent and the data plane takes at most."""

CLOGGED = 0.02
"""How often it takes up to a hundred times as long."""


class Pipe:
    """One way between a process's agent and its data plane: nothing is lost, nothing overtakes."""

    def __init__(self, host: Host, rng: Random, enter: Callable[[Callable[[], None]], None]) -> None:
        """``enter`` does what arrives, inside the process."""
        self._host = host
        self._rng = rng
        self._enter = enter
        self._latest = 0.0

    def send(self, action: Callable[[], None]) -> None:
        """``action`` happens at the other end."""
        world = self._host.world
        delay = self._rng.random() * PIPE * (100 if self._rng.random() < CLOGGED else 1)
        self._latest = max(self._latest, world.now + delay)
        world.after(self._latest - world.now, lambda: self._enter(action))


class Door(Consensus):
    """As the data plane sees it. What a dead process says is not heard."""

    def __init__(self, host: Host, rng: Random, dead: Callable[[], bool], tell: Callable[[str], None]) -> None:
        """``dead``: whether the process is gone. ``tell``: takes moments."""
        self.member = host.machine.member
        self.installed: View | None = None
        """As of the last word from the agent."""
        self._host = host
        self._dead = dead
        self.tell = tell
        self._where = NOWHERE
        self._latest_call: int | None = None
        self._pipe = Pipe(host, rng, lambda action: host.world.inside(host, action))

    def _perform(self, report: Report) -> None:
        if not self._dead():
            self._pipe.send(lambda: self._host.machine.handle(report, self._host.now))

    @property
    def id(self) -> str:
        """See ``Consensus``."""
        return self._host.id

    def seek_admission(self) -> None:
        """See ``Consensus``."""
        self._perform(SeekAdmission())

    def progress(self, finished: int, current: int, *, busy: bool = False, inner: int = 0) -> None:
        """See ``Consensus``."""
        if not self._dead():
            self._share(Progress(finished, current, self._host.now, busy, self._where.leaving, inner))

    def commit_to_leave(self) -> None:
        """See ``Consensus``."""
        if not self._dead():
            self._share(replace(self._where, leaving=True))
            self.tell("goodbye")

    def _share(self, progress: Progress) -> None:
        """By shared memory: the agent knows it at once, even if it is held up for what it is told."""
        self._where = progress
        self._host.machine.set_progress(progress)

    def average_success(self, call: int) -> None:
        """See ``Consensus``."""
        self._latest_call = call

    def average_failure(self, call: int, suspects: Sequence[str]) -> None:
        """See ``Consensus``."""
        self._perform(Hint(tuple(suspects)))
        self.tell("hinted")

    def leave(self, *, ended: bool = False) -> None:
        """See ``Consensus``."""
        self._perform(Leave(self._latest_call, ended))

    def flushed(self, epoch: int, report: bytes) -> None:
        """See ``Consensus``."""
        self._perform(Flushed(epoch, report))
        self.tell("reported")

    def ready(self, view_id: str) -> None:
        """See ``Consensus``."""
        self._perform(Built(view_id))

    def boundary(self, call: int, leavers: Sequence[str] = ()) -> None:
        """See ``Consensus``."""
        self._perform(Boundary(call, tuple(leavers)))

    def get_member_list(self) -> tuple[Member, ...]:
        """See ``Consensus``."""
        return () if self.installed is None else self.installed.members

    @property
    def view(self) -> View | None:
        """See ``Consensus``."""
        return self._host.machine.active_view

    def start(self, data_plane: DataPlane | None = None, *, meta: Mapping[str, str] | None = None) -> None:
        """The world starts machines."""

    def stop(self) -> None:
        """The world ends them."""

    def confirm(self) -> bool:
        """See ``Consensus``."""
        return not self._host.machine.changing

    def passive_or_active(self) -> Mode:
        """See ``Consensus``."""
        return self._host.world.config.mode or Mode.ACTIVE

    def report_join(self, addresses: Sequence[str]) -> bool:
        """Not used here."""
        return False

    def new_member_join(self) -> bool:
        """See ``Consensus``."""
        return self._host.machine.applicants_waiting

    def status(self) -> dict[str, Any]:
        """See ``Consensus``."""
        return self._host.machine.status()

    def serve(self, path: str, source: Source) -> None:
        """Others ask the process itself."""

    def wait_view(self, timeout: float) -> View | None:
        """Does not wait."""
        return self.view

    def wait_known(self, timeout: float) -> View | None:
        """Does not wait."""
        return self._host.machine.known_view
