"""A worker that goes through a dataset with an elastic sampler and a loader that looks ahead in processes of its own.

A ``program`` of ``worker.Task``; its orders, ``Task.given``, are ``Orders``. A gradient says which samples it was made from,
so that every average tells what is in it, and the hash of the parameters what was in all of them.

Lines: one a step, with ``hash``. Events, in order: ``init``, ``epoch`` for each loop over the data (``data``: its number;
``used``: how many samples its ledger has; ``unique``: how many different ones; ``digest`` of the whole ledger), ``done``.
SIGUSR2 has it leave after its next step (``left``).
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from consensus import format_address
from ftlib import ElasticSampler, ElasticStream, FTLib
from tests.harness.worker import Lines, Task, joined, place, tell_ledger

_BRAKED = 0.5


@dataclass(frozen=True)
class Orders:
    """One reader's."""

    samples: int = 600
    batch_size: int = 4
    epochs: int = 3
    loaders: int = 1
    """Processes of the loader."""
    prefetch: int = 2
    """Batches that each looks ahead."""
    persistent: bool = True
    rest: float = 0.005
    """Seconds of sleep that stand for forward and backward."""
    brake: str = ""
    """A file: while it is there, every step takes half a second, so that the data does not end before what a test waits for."""
    every: int = 1
    """Steps between two that are compared with the ledger."""
    tars: str = ""
    """A folder of tar files, ``0.tar`` and so on, which hold the samples: read as a stream."""
    sizes: tuple[int, ...] = ()
    """Samples of each of them."""

    def index(self, sample: Any) -> int:
        """Return the sample that a ledger tells of."""
        return sum(self.sizes[: sample[0]]) + sample[1] if self.tars else sample


class Numbers(Dataset[int]):
    """Each sample is its own index."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> int:
        return index


def prepare() -> None:
    """Import what the first steps import; start no thread."""
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.zeros_like(model.weight)
    torch.optim.SGD(model.parameters(), lr=1.0).step()


def read(task: Task, lines: Lines) -> int:
    """All epochs, from wherever the job is."""
    orders = Orders(**task.given)
    numbers = Numbers(orders.samples)
    model = torch.nn.Linear(orders.samples, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    sampler: ElasticSampler | ElasticStream
    if orders.tars:
        paths = [f"{orders.tars}/{shard}.tar" for shard in range(len(orders.sizes))]
        sampler = ElasticStream.tar(paths, batch_size=orders.batch_size, seed=11, lanes=max(1, orders.loaders))
    else:
        sampler = ElasticSampler(numbers, batch_size=orders.batch_size, seed=11)
    loader = DataLoader(
        sampler.records if isinstance(sampler, ElasticStream) else numbers,
        batch_sampler=sampler,
        num_workers=orders.loaders,
        prefetch_factor=orders.prefetch if orders.loaders else None,
        persistent_workers=orders.persistent and orders.loaders > 0,
        collate_fn=_numbers,
    )
    leaving = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: leaving.set())
    with joined(task, lines) as ft:
        ft.register_state(model, optimizer, sampler)
        for _ in sampler.epochs(orders.epochs):
            for batch in loader:
                _step(ft, model, optimizer, sampler, batch, orders, lines)
                if leaving.is_set():
                    lines.write(event="left")
                    return 0
            tell_ledger(sampler, lines)
        ft.barrier()  # who leaves while others are still in its last call has that redone without it
        lines.write(event="done", ends=ft.step)
    return 0


def _step(
    ft: FTLib,
    model: torch.nn.Linear,
    optimizer: torch.optim.Optimizer,
    sampler: ElasticSampler | ElasticStream,
    batch: torch.Tensor,
    orders: Orders,
    lines: Lines,
) -> None:
    time.sleep(_BRAKED if orders.brake and Path(orders.brake).exists() else orders.rest)
    weight = model.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[0].index_add_(0, batch, torch.full((len(batch),), 1.0 / len(batch)))
    status = ft.allreduce_average(model)
    if status:
        where = {}
        if ft.step % orders.every == 0:
            where = _check(ft, sampler, weight.grad[0].double(), orders, lines)
        optimizer.step()
        lines.write(
            end=time.monotonic(),
            address=format_address(ft._consensus.member.address),  # another one after it has joined again
            hash=hashlib.blake2b(weight.detach().numpy().tobytes(), digest_size=8).hexdigest(),
            **place(ft),
            **where,
        )


def _numbers(batch: Sequence[Any]) -> torch.Tensor:
    return torch.tensor([int(sample["cls"]) if isinstance(sample, dict) else sample for sample in batch])


def _check(
    ft: FTLib, sampler: ElasticSampler | ElasticStream, average: torch.Tensor, orders: Orders, lines: Lines
) -> dict[str, int]:
    """What is in the average is what the ledger says that this step used up. The epoch, and how many samples of it are used."""
    rows = list(sampler.ledger())
    told = Counter(orders.index(index) for row in rows if row.step == ft.step for index in row.indices)
    total = sum(told.values())
    found = {int(index): round(float(average[index]) * total, 2) for index in average.nonzero().flatten()}
    if found != dict(told):
        lines.write(event="error", text=f"step {ft.step} averaged {found}, the ledger says {dict(told)}")
    return {"data": rows[0].epoch if rows else 0, "used": sum(len(row.indices) for row in rows)}
