"""A worker that learns with a model and an optimizer, as programs do: what is registered, moved to joiners and compared.

A ``program`` of ``worker.Task``. Its orders, ``Task.given``, are ``Orders``; ``Task.sizes`` are the elements of its parameters.
Gradients come from the parameters themselves (or, ``normed``, from data), so that no two places of the state are alike.
Two more parameters, at both ends, have gradients that say whose they are: the average tells who took part (``who``).

Lines: ``began`` (an iteration), ``end`` (of its call), ``done`` (the optimizer has stepped); ``hash`` of parameters and
optimizer as of ``done``, ``buffers`` of the buffers. Events, in order: ``ready`` (all is built), ``starting`` (now
``FTLib.init``), ``init``, ``calling``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn

from ftlib import FTLib, Status
from tests.harness.worker import SLOTS, Lines, Task, joined, place

SAMPLES = 8
"""Of a batch, where there is data."""


@dataclass(frozen=True)
class Orders:
    """One learner's."""

    rest: float = 0.0
    """Seconds of sleep that stand for forward and backward."""
    optimizer: str = "adam"
    hold: bool = False
    """Once all is built, wait for SIGUSR2 before ``FTLib.init``."""
    normed: bool = False
    """Linear layers with batch normalization between them, of ``sizes[0]`` features; a real forward and backward pass."""
    transposed: bool = False
    """Of a matrix as wide as the others' is high: as many elements in another shape."""
    schedule: bool = False
    """A learning rate that changes with every step, registered too."""
    clip: float = 0.0
    """Clip the averaged gradient's norm between average and step; 0: do not."""
    drag: float = 0.0
    """Seconds that every step of the optimizer takes longer."""


def prepare() -> None:
    """Import what optimizers import at their first step; start no thread, and open no CUDA, as Adam's first step does."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    optimizer.step()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)


def state_bytes(sizes: Iterable[int], optimizer: str = "adam") -> int:
    """Bytes of the tensors in the state of a learner that has made a step, but for some of a few bytes."""
    return (sum(sizes) + 2 * SLOTS) * 4 * (3 if optimizer == "adam" else 2)


def asked(directory: Path) -> Path:
    """A file that a test writes a step's number to: learners without ``digest`` write theirs in that step's line."""
    return directory / "digest-at"


class Model(nn.Module):
    """Parameters of all sizes between two that say who took part."""

    def __init__(self, sizes: list[int], orders: Orders) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(SLOTS))
        if orders.normed:
            wide = sizes[0]
            self.body: nn.Module = nn.Sequential(nn.Linear(64, wide), nn.BatchNorm1d(wide), nn.ReLU(), nn.Linear(wide, 1))
        else:
            shapes = [_shape(size) for size in sizes]
            self.body = nn.ParameterList(torch.randn(shape[::-1] if orders.transposed else shape) for shape in shapes)
        self.last = nn.Parameter(torch.zeros(SLOTS))


class Learner:
    """One process: its model, its optimizer, its log."""

    def __init__(self, task: Task, lines: Lines) -> None:
        self.task = task
        self.lines = lines
        self.orders = orders = Orders(**task.given)
        torch.manual_seed(os.getpid())  # whoever loads nothing differs from the others
        self.model = Model(task.sizes, orders).to(task.device)
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer
        if orders.optimizer == "adam":
            self.optimizer = torch.optim.Adam(parameters, lr=1e-4)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999) if orders.schedule else None
        self.others: list[Any] = [] if self.scheduler is None else [self.scheduler]
        """What has a state, besides the model and the optimizer."""
        if orders.drag:
            self.optimizer.register_step_pre_hook(lambda *_: time.sleep(orders.drag))
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def register(self, ft: FTLib) -> None:
        """As a program does."""
        ft.register_state(model=self.model, optimizer=self.optimizer, extra=self.scheduler)

    def compute(self, slot: int) -> None:
        """This worker's own gradients."""
        if self.orders.rest:
            time.sleep(self.orders.rest)
        model = self.model
        if self.orders.normed:
            self.optimizer.zero_grad(set_to_none=False)
            model.body(torch.randn(SAMPLES, 64, device=self.task.device)).square().mean().backward()
        else:
            with torch.no_grad():
                for parameter in model.body.parameters():
                    torch.mul(parameter, 1.0 + slot / 8.0, out=parameter.grad)
        for marker in (model.first, model.last):
            assert marker.grad is not None
            marker.grad.zero_()
            marker.grad[slot] = 1.0

    def average(self, ft: FTLib) -> Status:
        """Make the step's call."""
        return ft.allreduce_average(self.model)

    def apply(self) -> None:
        """The averaged gradients."""
        if self.orders.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.orders.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()

    def who(self) -> int:
        """Bits of the slots that are in the average that was just applied, or is about to be."""
        masks = []
        for marker in (self.model.first, self.model.last):
            assert marker.grad is not None
            masks.append(sum(1 << place for place, value in enumerate(marker.grad.tolist()) if value))
        if masks[0] != masks[1]:
            self.lines.write(event="error", text=f"one call averaged over different members: {masks[0]:b} and {masks[1]:b}")
        return masks[0]

    def digest(self) -> str:
        """Of the parameters, and of the optimizer's and the scheduler's state."""
        parameters, others = xxhash.xxh3_64(), xxhash.xxh3_64()
        for parameter in self.model.parameters():
            _feed(parameters, parameter)
        _feed(others, self.optimizer.state_dict())
        for each in self.others:
            _feed(others, each.state_dict())
        return f"{parameters.hexdigest()}:{others.hexdigest()}"

    def buffers(self) -> str:
        """Of the model's buffers, which are each worker's own."""
        digest = xxhash.xxh3_64()
        for buffer in self.model.buffers():
            _feed(digest, buffer)
        return digest.hexdigest()


def learn(task: Task, lines: Lines, kind: type[Learner] = Learner) -> int:
    """Train until asked to end."""
    wake = {signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, wake)
    learner = kind(task, lines)
    lines.write(event="ready", pid=os.getpid())
    if learner.orders.hold:
        signal.sigwait(wake)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, wake)
    lines.write(event="starting")
    with joined(task, lines) as ft:
        learner.register(ft)
        lines.write(event="calling")
        while True:
            began = time.monotonic()
            learner.compute(task.slot)
            status = learner.average(ft)
            end = time.monotonic()
            if not status:
                lines.write(event="status", status=status.name)
                return 3
            who = learner.who()  # before clipping, which may scale the marks to nothing
            learner.apply()
            told: dict[str, Any] = {"began": began, "end": end, "done": time.monotonic(), "who": who, **place(ft)}
            if task.digest or ft.step == _wanted(task):
                told |= {"hash": learner.digest(), "buffers": learner.buffers()}
            if not task.digest and "hash" in told:
                told["state_bytes"] = ft.metrics()["state_bytes"]
            lines.write(**told)


def _wanted(task: Task) -> int:
    """The step whose hash is asked for."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        return int(asked(Path(task.log).parent).read_text())
    return -1


def _shape(size: int) -> tuple[int, ...]:
    """About square, as weights are."""
    high = next(high for high in range(int(size**0.5), 0, -1) if size % high == 0)
    return (high, size // high) if high > 1 else (size,)


def _feed(digest: Any, value: Any) -> None:
    """Everything in a tree of state."""
    if isinstance(value, torch.Tensor):
        digest.update(value.detach().cpu().contiguous().view(-1).numpy().data)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
