"""Builds the groups of one simulated process, also ahead of time, as ``GlooFramework`` does. What they do: ``collective``."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from consensus.simulation import Host
from ftlib.errors import GroupError
from ftlib.frameworks.base import Framework, GroupSpec

from ..machine.threads import Fibre, SimulatedThreads
from .collective import Rooms, SimulatedGroup


class SimulatedFramework(Framework):
    """Builds the groups of one process."""

    name = "simulated"

    def __init__(
        self,
        host: Host,
        threads: SimulatedThreads,
        rooms: Rooms,
        facts: Callable[[GroupSpec], Mapping[str, str]] = lambda _spec: {},
    ) -> None:
        """``facts``: see ``GlooFramework``."""
        self.group: SimulatedGroup | None = None
        self.facts = facts
        self.host = host
        self.threads = threads
        self.rooms = rooms
        self._void_before = 0
        self._building: _Build | None = None
        self._ahead: _Build | None = None
        """What was prepared and not asked for."""
        self._spoilt: set[str] = set()

    def start(self, host: str) -> Mapping[str, str]:
        """Nothing to advertise: members meet by the view's id."""
        return {}

    def rebuild(self, spec: GroupSpec) -> SimulatedGroup:
        """See ``Framework``."""
        unwanted = self._part_with_all_but(spec)
        build, self._ahead = self._ahead, None
        if unwanted is not None:
            unwanted.drop()
        if build is None and spec.view_id in self._spoilt:
            raise GroupError("built ahead and dropped")
        self._building = build = build or _Build(self, spec)
        try:
            self.group = build.wait()
        finally:
            self._building = None
        return self.group

    def prepare(self, spec: GroupSpec) -> None:
        """See ``Framework``."""
        if spec.epoch < self._void_before or spec.view_id in self._spoilt:
            return
        unwanted = self._part_with_all_but(spec)
        self._ahead = self._ahead or _Build(self, spec)
        if unwanted is not None:
            unwanted.drop()

    def _part_with_all_but(self, spec: GroupSpec | None) -> _Build | None:
        ahead = self._ahead
        if ahead is None or ahead.spec == spec:
            return None
        self._ahead = None
        self._spoilt.add(ahead.spec.view_id)
        return ahead

    def void(self, epoch: int) -> bool:
        """Whether groups of that epoch were given up."""
        return epoch < self._void_before

    def cancel(self, before: int = 0) -> None:
        """See ``Framework``."""
        self._void_before = max(self._void_before, before)
        if self._ahead is not None and (not before or self._ahead.spec.epoch < before):
            unwanted = self._part_with_all_but(None)
            if unwanted is not None:
                unwanted.drop()
        if self._building is not None and (not before or self._building.spec.epoch < before):
            self._building.stir()

    def check(self, tensor: torch.Tensor) -> None:
        """Every tensor will do."""

    def close(self) -> None:
        """See ``Framework``."""


class _Build:
    """One member's attempt to build the group of a view, on a thread of its own."""

    def __init__(self, framework: SimulatedFramework, spec: GroupSpec) -> None:
        self.spec = spec
        self._framework = framework
        self._threads = framework.threads
        self._group = SimulatedGroup(framework.rooms.room(spec), spec, framework.host, framework.threads)
        self._outcome: SimulatedGroup | GroupError | None = None
        self._dropped = False
        self._waiting: Fibre | None = None
        framework.rooms.room(spec).seats[spec.rank] = self._group
        framework.rooms.room(spec).facts[spec.rank] = framework.facts(spec)
        self._fibre = self._threads.thread(self._run, "build")
        self._fibre.start()

    def wait(self) -> SimulatedGroup:
        """What was built, or GroupError."""
        while self._outcome is None:
            self._waiting = self._threads.current()
            self._threads.park(None)
        if isinstance(self._outcome, GroupError):
            raise self._outcome
        return self._outcome

    def stir(self) -> None:
        """It looks at once whether it was given up."""
        self._threads.wake(self._fibre)

    def drop(self) -> None:
        """Nobody waits for it."""
        self._dropped = True
        self._group.abort()

    def _run(self) -> None:
        try:
            self._connect()
            self._outcome = self._group
        except GroupError as error:
            self._group.abort()
            self._outcome = error
        if self._waiting is not None:
            self._threads.wake(self._waiting)

    def _connect(self) -> None:
        spec, framework, group = self.spec, self._framework, self._group
        room, rng, pace = framework.rooms.room(spec), framework.rooms.rng, framework.rooms.pace
        end, pause = self._threads.now() + spec.timeout, 0.001
        while True:
            if self._dropped or framework.void(spec.epoch):
                raise GroupError("given up")
            if room.lost:
                raise GroupError("connection refused", tuple(sorted(room.lost)))
            missing = group.unconnected()
            if not missing:
                break
            if self._threads.now() > end:
                raise GroupError("nobody came", tuple(missing))
            self._threads.sleep(pause)
            pause = min(2 * pause, 0.05)
        self._threads.sleep(rng.uniform(0.0, pace.build))
        if self._dropped or framework.void(spec.epoch) or rng.random() < pace.unbuilt:
            raise GroupError("given up")
