"""The golden course: two layers of weight 1, inner steps of -2, outer SGD of rate 2, a sync of each layer in six steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ftlib import DiLoCo, FTLib
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import Worker, workers

COURSES = {
    (0, 0.0): ("1 -1 -3 -11 -13 -15 -17 -19 -21 -35", "1 -1 -3 -5 -7 -9 -23 -25 -27 -29"),
    (0, 0.5): ("1 -1 -3 -8 -10 -12 -14 -16 -18 -24.5", "1 -1 -3 -5 -7 -9 -17 -19 -21 -23"),
    (0, 1.0): ("1 -1 -3 -5 -7 -9 -11 -13 -15 -17", "1 -1 -3 -5 -7 -9 -11 -13 -15 -17"),
    (1, 0.0): ("1 -1 -3 -7 -9 -11 -13 -15 -17 -27", "1 -1 -3 -5 -7 -9 -19 -21 -23 -25"),
    (1, 0.5): ("1 -1 -3 -6 -8 -10 -12 -14 -16 -21.5", "1 -1 -3 -5 -7 -9 -15 -17 -19 -21"),
    (1, 1.0): ("1 -1 -3 -5 -7 -9 -11 -13 -15 -17", "1 -1 -3 -5 -7 -9 -11 -13 -15 -17"),
}
"""Each layer's weight before steps 0 to 9, by delay and alpha."""

GLOBAL = {
    (0, 0.0): (-35, -23),
    (0, 0.5): (-29, -23),
    (0, 1.0): (-23, -23),
    (1, 0.0): (-27, -19),
    (1, 0.5): (-25, -19),
    (1, 1.0): (-23, -19),
}
"""The global weights then."""


class Layers(nn.Module):
    def __init__(self, start: float = 1.0) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.full((1,), start)) for _ in range(2))

    def forward(self) -> torch.Tensor:
        return 2.0 * (self.first + self.second)

    @property
    def now(self) -> tuple[float, float]:
        return self.first.item(), self.second.item()


class Modules(nn.Module):
    """The same with a module for each weight, under names that objects of ftlib's have as well."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.ones(1))])
        self.replaced = nn.ParameterList([nn.Parameter(torch.ones(1))])

    def forward(self) -> torch.Tensor:
        return 2.0 * (self.parts[0] + self.replaced[0])

    @property
    def now(self) -> tuple[float, float]:
        return self.parts[0].item(), self.replaced[0].item()


def inner_step(model: nn.Module, inner: torch.optim.Optimizer) -> None:
    """Each weight becomes 2 less."""
    inner.zero_grad()
    model().backward()
    inner.step()


def follow(ft: FTLib, delay: int, alpha: float, outer: str = "function", hooks: bool = True) -> None:
    model = Layers()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    ways = {
        "function": lambda weights: torch.optim.SGD(weights, lr=2.0),
        "optimizer": torch.optim.SGD(model.parameters(), lr=2.0),
        "optimizers": [torch.optim.SGD([weight], lr=2.0) for weight in model.parameters()],
    }
    diloco = DiLoCo(
        ft,
        model,
        inner=inner if hooks else None,
        outer=ways[outer],  # type: ignore[arg-type]
        sync_every=6,
        fragments=2,
        delay=delay,
        alpha=alpha,
    )
    ft.register_state(model=diloco)
    before = ft.step
    found = []
    with diloco:
        for step in range(10):
            found.append(model.now)
            if step < 9:
                inner_step(model, inner)
                if not hooks:
                    diloco.step()
    first, second = COURSES[delay, alpha]
    assert [(float(a), float(b)) for a, b in zip(first.split(), second.split(), strict=True)] == found
    assert tuple(weight.item() for weight in diloco.global_model.parameters()) == GLOBAL[delay, alpha]
    assert ft.step - before == diloco.syncs == 3 and diloco.inner_steps == 9


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("delay", "alpha"), COURSES)
@workers(1)
def test_fragments_that_are_modules(worker: Worker, delay: int, alpha: float, backwards: bool) -> None:
    """They take turns in the order in which they are given."""
    model = Modules()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=2.0)
    order: list[nn.Module] = [model.parts, model.replaced]
    if backwards:
        order.reverse()
    diloco = DiLoCo(worker.ft, model, inner=inner, outer=outer, sync_every=6, fragments=order, delay=delay, alpha=alpha)
    worker.ft.register_state(model=diloco)
    found = []
    with diloco:
        for step in range(10):
            found.append(model.now)
            if step < 9:
                inner_step(model, inner)
    courses = [[float(weight) for weight in course.split()] for course in COURSES[delay, alpha]]
    assert [list(course) for course in zip(*found, strict=True)] == (courses[::-1] if backwards else courses)
    kept = diloco.global_model.state_dict()
    assert list(kept) == (["replaced.0", "parts.0"] if backwards else ["parts.0", "replaced.0"])
    assert tuple(weight.item() for weight in kept.values()) == GLOBAL[delay, alpha]


@pytest.mark.parametrize(("delay", "alpha"), COURSES)
@workers(1)
def test_alone(worker: Worker, delay: int, alpha: float) -> None:
    follow(worker.ft, delay, alpha)


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


@pytest.mark.parametrize("outer", ["function", "optimizer", "optimizers"])
@pytest.mark.parametrize(("delay", "alpha"), COURSES)
@by_all("pair")
def test_two_that_do_the_same(ft: FTLib, i: int, delay: int, alpha: float, outer: str) -> None:
    assert i in (0, 1)
    follow(ft, delay, alpha, outer, hooks=outer != "optimizers")
