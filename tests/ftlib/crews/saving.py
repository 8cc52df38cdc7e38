"""Workers as threads that train alike, to save and load checkpoints with."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ftlib import FTLib
from ftlib.checkpoints.checkpoint import Taken
from ftlib.checkpoints.names import Name
from ftlib.state.registry import Registered
from tests.ftlib.state.test_checkpoints import same
from tests.harness.company import at_once, company


class Trainee:
    """A worker with a model of its own, whose step is the same arithmetic everywhere."""

    def __init__(self, ft: FTLib) -> None:
        self.ft = ft
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)

    def register(self) -> None:
        self.ft.register_state(model=self.model, optimizer=self.optimizer)

    def step(self) -> None:
        inputs = torch.arange(12.0).view(3, 4) + self.ft.rank + self.ft.step
        self.model(inputs).pow(2).sum().backward()
        if self.ft.allreduce_average(self.model):
            self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> Any:
        return Taken.of(Registered({"model": self.model, "optimizer": self.optimizer}).tree(self.ft.step), Name(0, 0), 1)


@contextmanager
def crew(size: int, *, registered: bool = True, **settings: Any) -> Iterator[list[Trainee]]:
    with company(size, **settings) as made:
        trainees = [Trainee(ft) for ft in made.members]
        if registered:
            at_once(*[trainee.register for trainee in trainees])
        yield trainees


def all_of(trainees: list[Trainee], do: Callable[[Trainee], Any]) -> list[Any]:
    return at_once(*[functools.partial(do, trainee) for trainee in trainees])


def steps(count: int, trainees: list[Trainee]) -> None:
    for _ in range(count):
        all_of(trainees, lambda trainee: trainee.step())


def equal(one: Trainee, other: Trainee) -> bool:
    return one.ft.step == other.ft.step and same(one.state().copies, other.state().copies)
