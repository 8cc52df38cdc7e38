"""What a simulated process looks like to the promises and to its peers' devices; ``Process`` is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from consensus.simulation import Host
from ftlib.core.calls.call import Call
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.plane.plane import Plane
from ftlib.data.elastic_sampler import ElasticSampler
from ftlib.settings.replicas import Part

from ..groups.collective import Rooms
from ..machine.threads import SimulatedThreads
from .door import Door

WEIGHTS = (1.0, 2.0)
"""What a contribution may weigh."""

SAMPLES, BATCH = 61, 3
"""Of the dataset."""


class Program(Protocol):
    """What a process runs: ``Trainer``."""

    token: int
    """Forward and backward passes so far."""
    open: Call | None
    """The call that was begun in backward, until it ends."""
    own: torch.Tensor
    """See ``Trainer``."""

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """Of all its models."""

    @property
    def sampler(self) -> ElasticSampler:
        """Where its samples come from."""

    def averages(self, number: int) -> int:
        """How many averages there are up to that call."""


class Body(Protocol):
    """One process, without its job."""

    @property
    def host(self) -> Host:
        """Where it lives."""

    @property
    def index(self) -> int:
        """The how manieth process of the job this is."""

    @property
    def part(self) -> Part:
        """Of which replica it is which shard; one by itself is a replica of one shard."""

    @property
    def threads(self) -> SimulatedThreads:
        """Its own."""

    @property
    def door(self) -> Door:
        """To its agent."""

    @property
    def plane(self) -> Plane:
        """The real one."""

    @property
    def rooms(self) -> Rooms:
        """Where the members with its shard meet."""

    @property
    def call_lock(self) -> CallLock:
        """The real one."""

    @property
    def trainer(self) -> Program:
        """What it runs."""

    def computes_on(self, view_id: str, *, calls: bool = False) -> bool:
        """See ``SimulatedHybrid``."""
