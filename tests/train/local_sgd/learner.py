"""A worker that syncs seldom: a ``program`` of ``worker.Task``, which writes a line for each sync.

Each inner step moves its weights by what says whose they are (see ``worker``), so the average of pseudo-gradients tells who is
in a sync. Orders (``Task.given``): the arguments of ``DiLoCo``; ``pause``, seconds of an inner step; ``die``, the number of the
inner step before which it kills itself; ``inf``, that of one after which its weights are inf.
"""

from __future__ import annotations

import functools
import math
import os
import signal
import time
from typing import Any

import torch
from torch import nn

from ftlib import DiLoCo, ElasticSampler
from tests.harness import moments
from tests.harness.worker import SLOTS, Lines, Task, _digest, _fill, _who, joined, place


def prepare() -> None:
    """Import what an optimizer imports at its first step; start no thread."""
    torch.set_num_threads(1)
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], lr=1.0).step()


class Model(nn.Module):
    def __init__(self, sizes: list[int], slot: int) -> None:
        super().__init__()
        assert min(sizes) >= 2 * SLOTS, "smaller ones do not tell who is in them"
        self.weights = nn.ParameterList(torch.zeros(size) for size in sizes)
        self.mine = [torch.zeros(size) for size in sizes]
        _fill(self.mine, slot)

    def forward(self) -> torch.Tensor:
        return torch.stack([(weight * mine).sum() for weight, mine in zip(self.weights, self.mine, strict=True)]).sum()


class Outer(torch.optim.SGD):
    """It tells whose pseudo-gradients it was given."""

    def __init__(self, weights: list[nn.Parameter], lines: Lines, told: dict[str, Any]) -> None:
        super().__init__(weights, lr=0.5, momentum=0.5)
        self._lines, self._told = lines, told

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients = [weight.grad for group in self.param_groups for weight in group["params"] if weight.grad is not None]
        if gradients:
            self._told["who"] = _who(gradients, self._lines)
        super().step(closure)

    def kept(self) -> list[torch.Tensor]:
        return [torch.as_tensor(value) for state in self.state.values() for value in state.values()]


def learn(task: Task, lines: Lines) -> int:
    """Train until killed."""
    orders = dict(task.given)
    die, inf, fragments = orders.pop("die", 0), orders.pop("inf", 0), orders.get("fragments", 1)
    model = Model(task.sizes, task.slot)
    inner = torch.optim.SGD(model.parameters(), lr=2.0**-24)
    told: dict[str, Any] = {}
    outers: list[Outer] = []

    def outer(weights: list[nn.Parameter]) -> Outer:
        outers.append(Outer(weights, lines, told))
        return outers[-1]

    if task.kill_at:
        moments.arm(task.kill_at)
    with joined(task, lines) as ft:
        diloco = DiLoCo(ft, model, inner=inner, outer=outer, **orders)
        assert len(outers) == fragments
        ft.register_state(model=diloco)
        digest = functools.partial(_global, diloco, outers)
        with diloco:
            while True:
                if diloco.inner_steps + 1 == die:
                    os.kill(os.getpid(), signal.SIGKILL)
                inner.zero_grad()
                time.sleep(task.pause)  # stands for computing
                model().backward()
                before, early = diloco.syncs, _early(diloco)
                if diloco.inner_steps + 1 == inf:
                    with torch.no_grad():
                        model.weights[0][-1] = math.inf
                inner.step()
                if diloco.syncs == before:
                    continue
                if diloco.inner_steps == inf or not diloco.status:
                    lines.write(event="failed", status=str(diloco.status), hash=digest(), inner=diloco.inner_steps)
                    with torch.no_grad():
                        diloco.load_global()
                    continue
                lines.write(**place(ft), **told, hash=digest(), early=early, inner=diloco.inner_steps)


def sample(task: Task, lines: Lines) -> int:
    """As ``learn``, over ``samples`` of them, until killed: says at the end of each epoch which it has used up in it."""
    orders = dict(task.given)
    die, count = orders.pop("die", 0), orders.pop("samples")
    model = Model(task.sizes, task.slot)
    inner = torch.optim.SGD(model.parameters(), lr=2.0**-24)
    with joined(task, lines) as ft:
        outer = functools.partial(torch.optim.SGD, lr=0.5)
        diloco = DiLoCo(ft, model, inner=inner, outer=outer, weight="samples", **orders)
        sampler = ElasticSampler(range(count), batch_size=3, seed=1)
        ft.register_state(model=diloco, sampler=sampler)
        with diloco:
            for _ in sampler.epochs(1 << 20):
                for _batch in sampler:
                    if diloco.inner_steps + 1 == die:
                        lines.write(event="dies", epoch=sampler.epoch, syncs=diloco.syncs)
                        os.kill(os.getpid(), signal.SIGKILL)
                    inner.zero_grad()
                    time.sleep(task.pause)  # stands for computing
                    model().backward()
                    inner.step()
                used = sorted(index for row in sampler.ledger(sampler.epoch) for index in row.indices)
                lines.write(event="epoch", epoch=sampler.epoch, used=used, size=ft.size)
    return 0


def _early(diloco: DiLoCo) -> bool:
    """Whether a sync is under way, and was entered before its end."""
    average = diloco._rounds._average
    return average is not None and average._opened


def _global(diloco: DiLoCo, outers: list[Outer]) -> str:
    kept = [value for outer in outers for value in outer.kept()]
    return _digest([*(weight.detach() for weight in diloco.global_model.parameters()), *kept])
