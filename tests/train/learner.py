"""A learner whose step is an ``ftlib.Optimizer``'s, which clips and scales; a ``program`` of ``worker.Task``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ftlib import FTLib, Optimizer, Status
from tests.harness.worker import Lines, Task
from tests.processes.programs import learner

OVERFLOW = 7
"""Every so many steps one gradient is inf: the scaler skips that step, at all workers."""


class Scaler(torch.amp.GradScaler):
    """It lets ``look`` look at the averages before they are unscaled, and clipped perhaps to nothing."""

    def __init__(self, device: str, look: Callable[[], None]) -> None:
        super().__init__(device, init_scale=1024.0, growth_interval=4)
        self._look = look

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self._look()
        super().unscale_(optimizer)


class WrappingLearner(learner.Learner):
    """It registers the wrapper, and neither ``apply=`` nor the scaler."""

    def __init__(self, task: Task, lines: Lines) -> None:
        super().__init__(task, lines)
        self.scaler = Scaler(torch.device(task.device).type, self.look)
        self.others.append(self.scaler)
        self.step = self.mask = 0

    def register(self, ft: FTLib) -> None:
        self.wrapper = Optimizer(ft, self.optimizer, clip_norm=0.5, scaler=self.scaler)
        ft.register_state(model=self.model, optimizer=self.wrapper)

    def compute(self, slot: int) -> None:
        super().compute(slot)
        scale = self.scaler.scale(torch.ones((), device=self.task.device))
        with torch.no_grad():
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(scale)
            if self.step % OVERFLOW == OVERFLOW - 1:
                body = next(self.model.body.parameters())
                assert body.grad is not None
                body.grad.view(-1)[0] = math.inf

    def average(self, ft: FTLib) -> Status:
        status = self.wrapper.step()
        self.step = ft.step
        return status

    def look(self) -> None:
        """Whose gradients are in the averages."""
        self.mask = super().who()

    def who(self) -> int:
        return self.mask

    def apply(self) -> None:
        """It is applied already."""


def learn(task: Task, lines: Lines) -> int:
    """Train until asked to end."""
    return learner.learn(task, lines, WrappingLearner)
