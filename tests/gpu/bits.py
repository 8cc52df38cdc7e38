"""A worker that averages numbers whose sums are rounded, and tells the bits of each result: a ``program`` of ``Task``."""

from __future__ import annotations

import hashlib

import torch

from tests.harness.worker import Lines, Task, joined, place

SHARES = (7, 1000, 150_001)
"""Elements of the tensors: two of them share a bucket, and the last one is split."""


def inputs(slot: int, step: int) -> list[torch.Tensor]:
    """What the worker of a slot gives to the average of a step."""
    chance = torch.Generator().manual_seed(1_000 * step + slot)
    return [torch.randn(size, generator=chance) for size in SHARES]


def mean(slots: list[int], step: int) -> list[torch.Tensor]:
    """The true result: rounded once for the sum of two, which has but one order, and once for the division."""
    rows = [inputs(slot, step) for slot in slots]
    return [torch.stack(each).sum(0) / float(len(slots)) for each in zip(*rows, strict=True)]


def digest(tensors: list[torch.Tensor]) -> str:
    """Of their bits."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        found.update(tensor.cpu().numpy().data)
    return found.hexdigest()


def average(task: Task, lines: Lines) -> int:
    """Until asked to end. Each line has the digest of the result."""
    with joined(task, lines) as ft:
        while True:
            step = ft.step
            tensors = [tensor.to(task.device) for tensor in inputs(task.slot, step)]
            if not ft.allreduce_average(tensors):
                return 3
            lines.write(inputs=step, hash=digest(tensors), **place(ft))
