"""Models on a device that does everything late, and pupils that train them: what a step does is only enqueued."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
import xxhash
from torch import nn

from ftlib import FTLib
from tests.ftlib.crews.latecomers import Latecomer
from tests.ftlib.recovery.pupils import Pupil
from tests.harness.late_device import LateDevice

RATE = 0.01


def on_device(tensor: torch.Tensor) -> bool:
    """Which tensors are on the device."""
    return tensor.dtype is torch.float32


class Net(nn.Module):
    """Two parameters, one of them not contiguous, and a buffer that each step changes."""

    def __init__(self, seed: int, width: int = 40) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.one = nn.Parameter(torch.randn(width, 30, generator=draw))
        self.other = nn.Parameter(torch.randn(20, width, generator=draw).t())
        self.register_buffer("seen", torch.zeros(7))
        self.seen: torch.Tensor


class LateSGD(torch.optim.SGD):
    """With momentum, and late."""

    def __init__(self, parameters: Iterable[torch.Tensor], device: LateDevice) -> None:
        super().__init__(parameters, lr=RATE, momentum=0.9)
        self.device = device

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        rows = []
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
            rows.append((parameter, parameter.grad, state["momentum_buffer"]))
        changed = [tensor for parameter, _, momentum in rows for tensor in (parameter, momentum)]
        self.device.update(functools.partial(_stepped, rows), *changed)


class LatePupil(Pupil):
    """It never waits for its device. ``hashes``: filled in when the device gets there."""

    def __init__(self, ft: FTLib, seed: int, *, device: LateDevice, scribbles: bool = False, **more: Any) -> None:
        """``scribbles``: before its first call it changes its model, which nobody will see."""
        self.device, self.scribbles = device, scribbles
        self.drawn = torch.Generator().manual_seed(seed)
        super().__init__(ft, seed, **more)

    def build(self, seed: int, width: int) -> tuple[Net, LateSGD]:
        model = Net(seed, width)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return model, LateSGD(model.parameters(), self.device)

    def gradients(self) -> None:
        found = []
        for parameter in self.model.parameters():
            found.append((parameter, parameter.grad, torch.randn(parameter.shape, generator=self.drawn)))
        self.device.enqueue(functools.partial(_differ, found), *[gradient for _, gradient, _ in found])
        if self.scribbles:
            self.scribbles = False
            for parameter in self.model.parameters():
                self.device.update(functools.partial(parameter.fill_, 1e6), parameter)

    def apply(self) -> None:
        self.optimizer.step()
        seen, one = self.model.seen, self.model.one
        self.device.update(lambda: seen.mul_(0.5).add_(one[0, :7]), seen)

    def note(self) -> None:
        self.device.enqueue(functools.partial(self._noted, self.ft.step))

    def _noted(self, step: int) -> None:
        self.hashes[step] = fingerprint(self.model, self.optimizer)


class LateLatecomer(LatePupil, Latecomer):
    """Late in both senses. What it misses are averages: its buffer goes its own way."""

    def apply(self) -> None:
        self.optimizer.step()


def fingerprint(model: Net, optimizer: torch.optim.Optimizer) -> str:
    """Of all bits; the device must have nothing to do."""
    found = xxhash.xxh3_128()
    kept = [optimizer.state[parameter].get("momentum_buffer", model.seen) for parameter in model.parameters()]
    for tensor in (*model.parameters(), model.seen, *kept):
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def _differ(pairs: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    for parameter, gradient, target in pairs:
        gradient.copy_(parameter - target)


def _stepped(rows: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> None:
    for parameter, gradient, momentum in rows:
        momentum.mul_(0.9).add_(gradient)
        parameter.sub_(RATE * momentum)
