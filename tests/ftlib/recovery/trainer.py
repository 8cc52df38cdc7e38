"""A model whose state is pinned while it trains, and control of the thread that reads it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from ftlib.recovery.donor.reading import Reading
from ftlib.recovery.donor.snapshots import Snapshots
from ftlib.recovery.layout.manifest import split
from ftlib.recovery.layout.shards import Shard
from ftlib.state.registry import Registered
from tests.harness.basics import around

LONG = 120.0
"""Seconds that anything may take."""


class Trainer:
    """A model with an optimizer, and the pins of its state."""

    def __init__(self, width: int = 50, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 3))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.width = width
        self.step()
        self.snapshots = Snapshots()
        self.snapshots.watch([self.optimizer])
        self.flat = split(Registered({"model": self.model, "optimizer": self.optimizer}), 0)[1]

    def step(self) -> None:
        self.model(torch.randn(4, self.width)).pow(2).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def bytes(self, start: int = 0, stop: int | None = None) -> bytes:
        stop = self.flat.nbytes if stop is None else stop
        data = torch.zeros(stop - start, dtype=torch.uint8)
        self.flat.copy_out(start, stop, data)
        return bytes(data.numpy())

    def shards(self, count: int = 1, version: int = 1) -> list[Shard]:
        cuts = [self.flat.nbytes * index // count for index in range(count + 1)]
        return [Shard(index, cuts[index], cuts[index + 1], version, ("a",)) for index in range(count)]

    def arm(self, count: int = 1, version: int = 1, joiner: str = "j") -> list[Shard]:
        """So many shards of everything, inside that call."""
        shards = self.shards(count, version)
        self.snapshots.arm(joiner, shards, self.flat, version)
        return shards

    def pinned(self, shard: Shard, joiner: str = "j") -> bytes:
        data = self.snapshots.data(joiner, shard.index, shard.version, LONG)
        assert data is not None, "it never became complete"
        return bytes(data.numpy())


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The pins' own thread stops before it reads, until the second event. The first: it is there."""
    there, go_on = threading.Event(), threading.Event()

    @around(monkeypatch, Reading, "work")
    def work(usual: Any, self: Reading, unit: tuple[int, int]) -> str:
        if threading.current_thread().name == "ftlib-snapshots":
            there.set()
            assert go_on.wait(LONG)
        return usual(self, unit)

    try:
        yield there, go_on
    finally:
        go_on.set()


def ended() -> None:
    """The pins' threads have come to their end."""
    for thread in threading.enumerate():
        if thread.name == "ftlib-snapshots":
            thread.join(LONG)
            assert not thread.is_alive()
