"""A worker whose backward averages compressed gradients: a ``program`` of ``worker.Task`` with ``DistributedDataParallel``.

A parameter in float64, which is not compressed, says whose gradients are in an average. Orders (``Task.given``):
``compression``, a name or PowerSGD's rank; ``die``, the number of a parameter at whose gradient it kills itself, in its fourth
average. A call has 14 operations or more, of which ``kill_at`` may name one.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn

from ftlib import DistributedDataParallel, PowerSGD
from tests.harness.moments import arm
from tests.harness.worker import SLOTS, Lines, Task, _digest, _fill, _who, joined, place

WIDTH = 70
"""A matrix has two buckets."""


class Model(nn.Module):
    """The gradients of the matrices are random, those of ``who`` say whose they are."""

    def __init__(self, slot: int) -> None:
        super().__init__()
        self.matrices = nn.ParameterList(torch.zeros(WIDTH, WIDTH) for _ in range(3))
        self.who = nn.Parameter(torch.zeros(2 * SLOTS, dtype=torch.float64))
        self.mine = torch.zeros(2 * SLOTS, dtype=torch.float64)
        _fill([self.mine], slot)

    def forward(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        found = (self.who * self.mine).sum()
        for matrix in self.matrices:
            found = found + (matrix * torch.randn(WIDTH, WIDTH, generator=generator)).sum()
        return found


def learn(task: Task, lines: Lines) -> int:
    """Train until killed."""
    if task.kill_at:
        arm(task.kill_at)
    model = Model(task.slot)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    compression = task.given["compression"]
    if isinstance(compression, int):
        compression = PowerSGD(compression)
    with joined(task, lines) as ft:
        wrapped = DistributedDataParallel(ft, model, bucket_mb=0.01, first_bucket_mb=0.005, compression=compression)
        ft.register_state(model=wrapped, optimizer=optimizer)
        finished = 0
        if "die" in task.given:

            def die(_: torch.Tensor) -> None:
                if finished == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

            list(model.parameters())[task.given["die"]].register_hook(die)
        while True:
            optimizer.zero_grad()
            loss = wrapped(1000 * task.slot + finished)
            time.sleep(task.pause)
            loss.backward()
            end = time.monotonic()
            if not wrapped.status:
                lines.write(event="status", status=str(wrapped.status))
                return 3
            assert model.who.grad is not None
            who = _who([model.who.grad], lines)
            optimizer.step()
            finished += 1
            told = _digest([parameter.detach() for parameter in model.parameters()])
            lines.write(**{"end": end, **place(ft), "who": who, "hash": told}, early=wrapped._backward._early)
