"""A worker whose backward averages: a ``program`` of ``worker.Task`` with ``DistributedDataParallel``.

Its gradients say whose they are, as in ``worker``; its parameters are used in another order than they are registered in. Orders
(``Task.given``): ``die``, the number of a parameter at whose gradient it kills itself, in its fourth average.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch import nn

from ftlib import DistributedDataParallel
from tests.harness.worker import Lines, Task, _digest, _fill, _who, joined, place


class Model(nn.Module):
    """The parameters are used in the reverse of the order of registration, so that it is no good guess."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(size, device=task.device) for size in task.sizes)
        self.mine = [torch.zeros(size, device=task.device) for size in task.sizes]
        _fill(self.mine, task.slot)

    def forward(self, start: torch.Tensor) -> torch.Tensor:
        found = start
        for index in reversed(range(len(self.mine))):
            found = found + (self.weights[index] * self.mine[index]).sum()
        return found


def learn(task: Task, lines: Lines) -> int:
    """Train until killed."""
    model = Model(task)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.5)
    with joined(task, lines) as ft:
        wrapped = DistributedDataParallel(ft, model, bucket_mb=0.002, first_bucket_mb=0.001)
        # Whether the wrapper or the module is registered, before or after, makes no difference.
        ft.register_state(model=wrapped if task.slot % 2 else model, optimizer=optimizer)
        finished = 0
        if "die" in task.given:

            def die(_: torch.Tensor) -> None:
                if finished == 3:
                    os.kill(os.getpid(), signal.SIGKILL)

            model.weights[task.given["die"]].register_hook(die)
        while True:
            optimizer.zero_grad()
            loss = wrapped(torch.zeros((), device=task.device))
            time.sleep(task.pause)
            loss.backward()
            end = time.monotonic()
            if not wrapped.status:
                lines.write(event="status", status=str(wrapped.status))
                return 3
            grads = [_gradient(weight) for weight in model.weights]
            told: dict[str, Any] = {"end": end, **place(ft), "who": _who(grads, lines)}
            optimizer.step()
            finished += 1
            told["hash"] = _digest([weight.detach() for weight in model.weights])
            told["order"] = wrapped._backward._order.order()
            lines.write(**told, early=wrapped._backward._early)


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad
