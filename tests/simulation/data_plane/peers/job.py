"""What a simulated job gives to its processes, and what these are to each other: ``Trainers`` and ``Process``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Protocol

from consensus.simulation import Host
from ftlib.core.calls.call import Call
from ftlib.core.calls.observer import Observers
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.engine.engine import Engine
from ftlib.core.replicas.words import Word
from ftlib.core.tensors.layout import Layout
from ftlib.status import Status

from ..groups.collective import Rooms
from ..judging.promises import Promises
from ..parts.accelerator import Accelerators
from ..parts.body import Body
from .habits import Habits
from .state import SimulatedTransfer


class Mate(Protocol):
    """A process as the others of its replica hear and meet it: ``SimulatedMates``."""

    @property
    def met(self) -> bool:
        """Whether it is here for the others, or was."""

    def arrive(self, sender: str, word: Word | None) -> None:
        """See ``SimulatedMates``."""

    def part(self) -> None:
        """See ``SimulatedMates``."""


class Colleague(Body, Protocol):
    """A process with its job: what its own parts and the other processes use."""

    @property
    def jobs(self) -> Job:
        """All of the processes."""

    @property
    def mates(self) -> Mate | None:
        """The others of its replica; None if it is one by itself."""

    @property
    def transfer(self) -> SimulatedTransfer:
        """By which its state goes to others."""

    @property
    def observers(self) -> Observers:
        """The real ones."""

    @property
    def engine(self) -> Engine:
        """The real one."""

    @property
    def run(self) -> Callable[[Call], Status]:
        """See ``Engine``, or the backup worker around it."""

    @property
    def open(self) -> Callable[[OpenCall], bool]:
        """See ``Engine``, or the backup worker around it."""

    @property
    def abandon(self) -> Callable[[], None]:
        """See ``Engine``, or the backup worker around it."""

    def asked(self, query: Mapping[str, str]) -> Iterator[bytes]:
        """See ``Inquiry.source``."""

    def layout(self, start: bytes) -> Layout | None:
        """Of a call that was made there."""


class Job(Protocol):
    """The settings of all processes, and who they are. See ``Trainers``."""

    seed: int
    lanes: int
    tensors: int
    in_flight: int
    compute: float
    long_steps: float
    veto: bool
    accelerators: Accelerators | None
    on_device: int
    habits: Habits | None
    inner: int
    handover: float
    interrupts: float
    rng: Random
    promises: Promises

    @property
    def processes(self) -> Mapping[str, Colleague]:
        """By their hosts' ids."""

    def rooms_of(self, shard: int) -> Rooms:
        """Where the members with that shard meet."""

    def transfer_of(self, member_id: str) -> SimulatedTransfer | None:
        """The donor's side at a member, None where it is gone."""

    def living(self, member_id: str) -> Colleague | None:
        """A member's process, None where it is gone."""

    def tell(self, host: Host, moment: str) -> None:
        """One of ``ambush.MOMENTS`` has come for a process."""

    def ended(self, process: Colleague) -> None:
        """A program has ended."""
