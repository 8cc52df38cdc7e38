"""What a launch returned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """What the workers returned, by host and local rank."""

    results: Mapping[str, Sequence[Any]]
    """For each host, in the order of their local ranks. In an elastic launch: of those that finished."""
    local_ranks: Mapping[str, Sequence[int]]
    """The local ranks that ``results`` are of."""
    ranks: Sequence[tuple[str, int]] = ()
    """Host and local rank of each rank; empty in an elastic launch, which has no ranks."""
    failures: Sequence[str] = ()
    """In words, each end that was no success; in an elastic launch others outlived it."""

    def rank(self, number: int) -> Any:
        """What the worker with this rank returned."""
        if not self.ranks:
            raise IndexError("an elastic launch has no ranks: see .results")
        host, local_rank = self.ranks[number]
        return self.index(host, local_rank)

    def index(self, hostname: str, local_rank: int) -> Any:
        """What that worker returned."""
        if local_rank not in self.local_ranks.get(hostname, ()):
            raise IndexError(f"no worker {local_rank} of {hostname!r} has finished")
        return self.results[hostname][list(self.local_ranks[hostname]).index(local_rank)]
