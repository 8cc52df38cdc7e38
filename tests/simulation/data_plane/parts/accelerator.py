"""Simulated groups with an accelerator: the product's own code and the rehearsal's, with faults that a seed draws.

``HybridFramework``, ``HybridGroup``, ``ManagedCommunicator`` and ``RehearsedCommunicator`` are the real ones, on simulated
threads (see ``system``). Only the groups below are made up: Gloo's, and the private one over which a rehearsed device reduces.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import cast

import torch

from consensus.simulation import Host
from ftlib.frameworks.accelerators.base import Accelerator, Communicator
from ftlib.frameworks.accelerators.framework import HybridFramework
from ftlib.frameworks.accelerators.group import HybridGroup
from ftlib.frameworks.accelerators.managed import Deadlines
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from ftlib.frameworks.accelerators.rehearsal.communicator import RehearsedCommunicator
from ftlib.frameworks.accelerators.rehearsal.faults import Faults, Way
from ftlib.frameworks.base import Group, GroupSpec
from ftlib.frameworks.gloo import GlooFramework
from ftlib.frameworks.gloo_build import GlooBuild
from ftlib.frameworks.gloo_group import GlooGroup

from ..groups.collective import Rooms, SimulatedGroup
from ..groups.framework import SimulatedFramework
from ..machine.links import connected
from ..machine.threads import SimulatedThreads
from .body import Body

Freed = Callable[[Body, Body, str], None]
"""Told of a process, a peer that it goes on with, and a view: the first frees there what the other one might use."""

NEWS = 0.005
"""Seconds at most until a peer's device notices that memory which it uses was freed."""


@dataclass(frozen=True)
class Equipment:
    """What one process has: an accelerator with faults, or none where ``absent`` says why."""

    faults: Faults
    deadlines: Deadlines
    absent: str = ""

    def __str__(self) -> str:
        """Its faults."""
        found = {field.name: getattr(self.faults, field.name) for field in fields(Faults)}
        words = [f"{name} {value.value}" for name, value in found.items() if isinstance(value, Way) and value is not Way.WORKS]
        words += [name for name, value in found.items() if not isinstance(value, Way) and value and name != "rank"]
        return ", ".join([*words, *["absent"] * bool(self.absent)])


HEALTHY = Equipment(Faults(), Deadlines())

Draw = Callable[[Random, int], Equipment]
"""What the process of that index has."""


class Accelerators:
    """Those of all processes of one job, and which memory of theirs is in use."""

    def __init__(self, seed: int, draw: Draw | None = None) -> None:
        """``draw``: by default all kinds of faults, at one process or at most of them."""
        self._rng = Random(f"{seed} accelerators")
        self._draw = draw or (_one if self._rng.random() < 0.3 else _most)
        self._users: dict[tuple[int, str], list[_User]] = {}
        """By shard and the view's id: the groups of one view have nothing in common."""
        self.equipment: list[Equipment] = []
        """By the processes' indices."""

    def equip(self) -> Equipment:
        """That of the next process."""
        self.equipment.append(self._draw(self._rng, len(self.equipment)))
        return self.equipment[-1]

    def use(self, process: Body, spec: GroupSpec, communicator: RehearsedCommunicator) -> None:
        """From now on a communicator uses memory of its peers."""
        self._users.setdefault((process.part.shard, spec.view_id), []).append(_User(process, communicator))

    def free(self, process: Body, view_id: str, freed: Freed) -> None:
        """A process frees what its peers in that view may use: none of those with which it goes on may use it now.

        ``freed``: checks that of each of them.
        """
        session = process.plane.session
        for user in self._users[process.part.shard, view_id]:
            other = user.process
            if other is process or not other.host.alive or other.threads.over:
                continue
            if session is not None and other.host.id in session.view:
                freed(process, other, view_id)
            if connected(process.host, other.host):
                news = functools.partial(other.threads.happens, user.communicator.freed_by_peer)
                process.host.world.after(self._rng.uniform(0.0, NEWS), news)


@dataclass(frozen=True)
class _User:
    process: Body
    communicator: RehearsedCommunicator


def _one(rng: Random, index: int) -> Equipment:
    return _faulty(rng, index) if index == 1 else HEALTHY


def _most(rng: Random, index: int) -> Equipment:
    return _faulty(rng, index) if rng.random() < 0.7 else HEALTHY


def _faulty(rng: Random, index: int) -> Equipment:
    """Only of one process some operations do not end though they are stopped: that is the end of it."""
    ways = [Way.WORKS] * 6
    faults = Faults(
        start=rng.choice([*ways, Way.FAILS, Way.HANGS]),
        start_seconds=rng.choice([0.0, 0.0, 0.0, 0.02, 0.2, 2.0]),
        launch_seconds=rng.choice([0.0, 0.0, 0.0, 0.002, 0.02]),
        kernel_seconds=rng.choice([0.0, 0.0, 0.0, 0.002, 0.02]),
        silent=rng.random() < 0.4,
        error_at=rng.choice([0, 0, 0, 1, 2, 5, 20]),
        stop=rng.choice([*ways, Way.HANGS]),
        stuck=index == 1 and rng.random() < 0.2,
        free=rng.choice([*ways, Way.FAILS, Way.HANGS]),
        communicators=rng.choice([0, 0, 1, 2, 3]),
    )
    deadlines = Deadlines(start=rng.choice([0.3, 3.0, 120.0]), free=rng.choice([0.3, 5.0]))
    return Equipment(faults, deadlines, "there is no such device" if rng.random() < 0.05 else "")


class SimulatedAccelerator(Accelerator):
    """As the rehearsal's, without sockets."""

    name = "rehearsal"

    def __init__(self, process: Body, accelerators: Accelerators, equipment: Equipment, freed: Freed) -> None:
        """``accelerators``: of all; ``freed``: see ``Accelerators.free``."""
        self._process, self._accelerators, self._equipment, self._freed = process, accelerators, equipment, freed
        self._begun = 0

    def start(self, host: str) -> None:
        """Fails where there is none."""
        if self._equipment.absent:
            raise RuntimeError(self._equipment.absent)

    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        """The ranks meet by the view's id."""
        return {}

    def begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        """See ``Accelerator``."""
        process, self._begun = self._process, self._begun + 1
        faults = self._equipment.faults.at(spec.rank, self._begun)
        accelerators = self._accelerators
        build = cast("GlooBuild", _PrivateBuild(process, spec))
        free = functools.partial(accelerators.free, process, spec.view_id, self._freed)
        communicator = RehearsedCommunicator(spec, build, faults, free)
        accelerators.use(process, spec, communicator)
        communicator.begin(decided)
        return communicator

    def place(self, tensor: torch.Tensor) -> str:
        """The program says itself what is there."""
        return PLACE

    def takes(self, tensor: torch.Tensor) -> bool:
        """Everything."""
        return True

    def close(self) -> None:
        """A process ends as a whole."""


class _PrivateBuild:
    """Of ``GlooBuild`` what a rehearsed communicator uses."""

    def __init__(self, process: Body, spec: GroupSpec) -> None:
        self._framework = SimulatedFramework(process.host, process.threads, process.rooms)
        self._spec = GroupSpec(f"{spec.view_id} device", spec.epoch, spec.rank, spec.size, {}, spec.timeout)

    def start(self) -> None:
        """``wait`` does everything."""

    def wait(self) -> Group:
        """See ``GlooBuild``."""
        return self._framework.rebuild(self._spec)

    def give_up(self, why: str) -> None:
        """See ``GlooBuild``."""
        self._framework.cancel(self._spec.epoch + 1)

    def drop(self) -> None:
        """See ``GlooBuild``."""
        if self._framework.group is not None:
            self._framework.group.abort()


class SimulatedHybrid(HybridFramework):
    """The product's, over simulated groups."""

    def __init__(
        self, host: Host, threads: SimulatedThreads, rooms: Rooms, accelerator: Accelerator, deadlines: Deadlines
    ) -> None:
        super().__init__(accelerator, deadlines)
        self.threads = threads
        self.simulated = SimulatedFramework(host, threads, rooms, self._facts)
        self._gloo = cast("GlooFramework", self.simulated)
        self.start("")
        atexit.unregister(self.close)

    def computes_on(self, view_id: str, *, calls: bool = False) -> bool:
        """Whether operations of that view's group run on the device, though no stop has waited in vain for their end.

        ``calls``: those of a start, which everybody has ended that begins another one, do not count, stopped or not. What is
        being launched does.
        """
        for communicator in self._communicators:
            if communicator._spec.view_id == view_id and not communicator._communicator.idle:
                if communicator.stopped and self.threads.now() >= communicator._stopped_at + communicator._deadlines.stop:
                    return False
                launched = (ticket is None or not ticket.query() for ticket, _ in communicator._kept)
                return not calls or communicator._launching > 0 or any(launched)
        return False

    def rebuild(self, spec: GroupSpec) -> Group:
        """See ``HybridFramework``."""
        group = self.simulated.rebuild(spec)
        communicator = None if spec.size == 1 else self._communicator(spec, group.facts)
        self.group = _HybridGroup(cast("GlooGroup", group), communicator, self._accelerator)
        return self.group


class _HybridGroup(HybridGroup):
    """The product's. A process that is killed aborts nothing, although its threads are unwound."""

    def abort(self) -> None:
        if not cast("SimulatedGroup", self.gloo).threads.over:
            super().abort()
