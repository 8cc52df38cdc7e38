"""Programs whose step is a unit (``FTLib.execute``), and which can tell whether any was carried out twice, or half."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ftlib import FTLib
from ftlib.frameworks.base import Group, Work
from tests.ftlib.crews.workers import Worker

WAIT = 40.0
"""Seconds that a collective of the program's may take."""


def summed(group: Group | None, tensor: torch.Tensor) -> torch.Tensor:
    """As a program does it that uses the group by itself; its error is its own."""
    if group is None:
        return tensor
    work: Work = group.allreduce(tensor)
    try:
        assert work.wait(WAIT)
    except Exception as error:
        raise ValueError("my collective failed") from error
    return tensor


class Learner:
    """A model whose gradients are the same at all workers, so that the state after n steps does not depend on who took part.

    All that a step changes is registered: parameters, momenta, a batch-norm layer's statistics, a schedule, a random generator.
    """

    def __init__(self, ft: FTLib, seed: int = 0) -> None:
        self.ft = ft
        drawn = torch.Generator().manual_seed(seed)  # its own: workers are threads
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.rand(parameter.shape, generator=drawn))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        self.generator = torch.Generator().manual_seed(7)
        self.attempts = 0
        self.history: dict[int, str] = {}
        """Hash of the state by ``ft.step``."""
        self.hooks: dict[str, Callable[[], Any]] = {}
        """Called at those places of the step."""
        ft.register_state(
            model=self.model,
            optimizer=self.optimizer,
            extra=self.scheduler,
            state_dict=lambda: {"generator": self.generator.get_state()},
            load_state_dict=lambda state: self.generator.set_state(state["generator"].clone()),
        )

    def step(self) -> float:
        """One unit."""
        loss: float = self.ft.execute(self._step, 4)
        self.history[self.ft.step] = self.digest()
        return loss

    def train(self, steps: int) -> dict[int, str]:
        """Until so many steps were committed."""
        while self.ft.step < steps:
            before = self.ft.step
            self.step()
            assert self.ft.step == before + 1 or not before  # a joiner does not know yet how far the others are
        return self.history

    def digest(self) -> str:
        """Of all that is registered."""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in [*self.model.state_dict().values(), self.generator.get_state()]:
            digest.update(tensor.numpy().tobytes())
        for state in self.optimizer.state.values():
            for value in state.values():
                digest.update(value.numpy().tobytes())
        digest.update(repr((self.optimizer.param_groups[0]["lr"], self.scheduler.last_epoch)).encode())
        return digest.hexdigest()

    def _at(self, place: str) -> None:
        self.hooks.get(place, lambda: None)()

    def _step(self, batch: int) -> float:
        ft, step = self.ft, self.ft.step
        self.attempts += 1
        self._at("begin")
        self.optimizer.zero_grad()
        inputs = torch.randn(batch, 6, generator=self.generator)
        loss = self.model(inputs).square().mean()
        loss.backward()
        self._at("backward")
        first, *rest = self.model.parameters()
        for parameter in (first, *rest):
            assert parameter.grad is not None
            parameter.grad.mul_(4096).round_().div_(4096)  # so few bits that any number of them has an exact sum
        late = ft.allreduce_average(rest, wait=False)
        assert ft.allreduce_average(first)
        self._at("between")
        group = ft.group
        ones = summed(group, torch.ones(3))
        assert int(ones[0]) == (1 if group is None else group.size) == ft.size
        self._at("collective")
        total = torch.tensor([round(float(loss.detach()), 2) * 128 // 1])
        assert ft.allreduce(total, "MEAN")
        assert late.wait()
        self.optimizer.step()
        self.scheduler.step()
        self._at("end")
        assert ft.step == step, "a step counts once it is committed"
        return float(total)


@functools.cache
def reference(steps: int) -> dict[int, str]:
    """The history without any failure. Made where it is needed: backward opens CUDA, and tests are forked after imports."""

    class Alone:
        """What a step uses of ``FTLib``."""

        step, size, group = 0, 1, None

        def register_state(self, **_: Any) -> None:
            return

        def execute(self, function: Callable[..., float], *args: Any) -> float:
            value = function(*args)
            self.step += 1
            return value

        def allreduce_average(self, _: Any, *, wait: bool = True) -> Any:
            return True if wait else self

        def allreduce(self, _: Any, __: str) -> bool:
            return True

        def wait(self) -> bool:
            return True

    learner = Learner(Alone())  # type: ignore[arg-type]
    return learner.train(steps)


STEPS = 12


OPERATIONS = 5


def once(action: Callable[[], Any], when: Callable[[], bool]) -> Callable[[], None]:
    done: list[int] = []

    def act() -> None:
        if when() and not done:
            done.append(1)
            action()

    return act


def learn(learners: dict[str, Learner], setup: Callable[[Worker, Learner], Any] = lambda *_: None) -> Callable[[Worker], Any]:
    """A worker's program."""

    def body(worker: Worker) -> dict[int, str]:
        learner = learners[worker.name] = Learner(worker.ft, seed=int(worker.name[1:]))
        setup(worker, learner)
        return learner.train(STEPS)

    return body


def the_same(history: dict[int, str]) -> None:
    """Nothing was lost, done twice, or done by halves."""
    assert history == {step: reference(STEPS)[step] for step in history}
    assert max(history) == STEPS


class Whim(Exception):
    """The program's own."""
