"""A worker that averages weights both by ``LocalSGD`` and as torch does: a ``program`` of ``worker.Task``."""

from __future__ import annotations

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from ftlib import LocalSGD
from tests.harness.worker import Lines, Task, joined


def learn(task: Task, lines: Lines) -> int:
    """A line for each inner step: how far the two models are apart."""
    every, rendezvous, size = task.given["sync_every"], task.given["rendezvous"], task.given["size"]
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, theirs)]
    data = torch.Generator().manual_seed(task.slot)
    with joined(task, lines) as ft:
        local = LocalSGD(ft, ours, sync_every=every, inner=optimizers[0])
        ft.register_state(model=local)
        dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=ft.rank, world_size=size)
        averager = PeriodicModelAverager(period=every, warmup_steps=every - 1)
        with local:
            for _ in range(4 * every):
                inputs, targets = torch.randn(16, 8, generator=data), torch.randn(16, 4, generator=data)
                for model, optimizer in zip((ours, theirs), optimizers, strict=True):
                    optimizer.zero_grad()
                    (model(inputs) - targets).square().mean().backward()
                    optimizer.step()
                averager.average_parameters(theirs.parameters())
                pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
                lines.write(event="compared", apart=max((a - b).abs().max().item() for a, b in pairs), syncs=ft.step)
        ft.barrier()
        dist.destroy_process_group()
    return 0
