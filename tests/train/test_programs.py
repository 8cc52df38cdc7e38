"""Drawn training programs with the wrapper, against the same with ``ft.allreduce_average``: equal bits.

A program is a list of steps, each a list of backwards: through which branches, summed or one by one, averaged or accumulated,
raising in the middle, through one graph twice; before some, one of two optimizers resets the gradients of its part. The
reference averages by hand after each backward that the wrapper averages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ftlib import DistributedDataParallel, Optimizer, Status
from ftlib.ftlib import FTLib
from tests.ftlib.crews.crew import Crew
from tests.harness.recompute import recompute
from tests.train.cases import built, data

SIZE = 2
WAYS = ("left", "right", "tied", "checkpointed", "reentrant", "none")


class Broken(RuntimeError):
    pass


class Model(nn.Module):
    """Branches that share parameters, in another order than they are registered in."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 3)
        self.tied = nn.Linear(6, 3)
        self.tied.weight = self.left.weight
        self.middle = nn.Linear(6, 6)
        self.stem = nn.Linear(4, 6)
        self.fails = False

    def forward(self, inputs: torch.Tensor, ways: tuple[str, ...]) -> torch.Tensor:
        hidden = self.stem(inputs).tanh()
        found = hidden.sum()
        for way in ways:
            found = found + self._way(hidden, way).square().sum()
        if self.fails:
            hidden.register_hook(self._fail)
        return found

    def _way(self, hidden: torch.Tensor, way: str) -> torch.Tensor:
        if way in ("checkpointed", "reentrant"):
            again: torch.Tensor = recompute(lambda x: self.middle(x).tanh(), hidden, use_reentrant=way == "reentrant")
            return again
        branch: nn.Module | None = getattr(self, way, None)
        return hidden if branch is None else branch(hidden)

    def _fail(self, _: torch.Tensor) -> None:
        raise Broken


@dataclass(frozen=True)
class Pass:
    """One backward, or several forwards whose losses go through one backward."""

    ways: tuple[tuple[str, ...], ...]
    """Of each forward."""
    synchronized: bool = True
    twice: bool = False
    fails: bool = False
    """Once, at the member with that rank alone; then it is done again."""
    others: tuple[tuple[str, ...], ...] = ()
    """Of each forward at rank 1, where those differ."""
    resets: int | None = None
    """Which of the two optimizers resets gradients before it; None: neither."""

    def ways_of(self, rank: int) -> tuple[tuple[str, ...], ...]:
        return self.others if rank and self.others else self.ways


@dataclass(frozen=True)
class Program:
    steps: tuple[tuple[Pass, ...], ...]
    bucket_mb: float
    static: bool
    find_unused: bool
    to_none: bool
    """How gradients are reset."""


ways = st.lists(st.sampled_from(WAYS), min_size=1, max_size=3).map(tuple)
passes = st.builds(
    Pass,
    ways=st.lists(ways, min_size=1, max_size=2).map(tuple),
    synchronized=st.booleans() | st.just(value=True),
    twice=st.booleans(),
    fails=st.booleans(),
    others=st.just(()) | st.lists(ways, min_size=1, max_size=2).map(tuple),
    resets=st.sampled_from([None, None, 0, 1]),
)
programs = st.builds(
    Program,
    steps=st.lists(st.lists(passes, min_size=1, max_size=3).map(tuple), min_size=1, max_size=4).map(tuple),
    bucket_mb=st.sampled_from([25.0, 2e-4, 1e-5]),
    static=st.booleans(),
    find_unused=st.booleans(),
    to_none=st.booleans(),
)

Backward = Callable[[Model, Callable[..., torch.Tensor], Pass, int], Status | None]


def parts(model: Model) -> list[torch.optim.Optimizer]:
    """Optimizers of a part of the model each."""
    own = {id(parameter) for parameter in model.left.parameters()}
    both = [[each for each in model.parameters() if (id(each) in own) is first] for first in (True, False)]
    return [torch.optim.SGD(each, lr=0.01) for each in both]


def train(
    program: Program, model: Model, call: Callable[..., Any], backward: Backward, halves: Sequence[torch.optim.Optimizer]
) -> list[bytes]:
    """The bits of all gradients after each backward, and of the parameters after each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    found = []
    for number, step in enumerate(program.steps):
        for half in halves:
            half.zero_grad(set_to_none=program.to_none)
        for index, each in enumerate(step):
            if each.resets is not None:
                halves[each.resets].zero_grad(set_to_none=program.to_none)
            backward(model, call, each, 10 * number + index)
            found.append(bits([parameter.grad for parameter in model.parameters()]))
        optimizer.step()
        found.append(bits(list(model.parameters())))
    return found


def bits(tensors: list[Any]) -> bytes:
    return b"|".join(b"-" if each is None else each.detach().numpy().tobytes() for each in tensors)


def losses(call: Callable[..., torch.Tensor], each: Pass, rank: int, seed: int) -> torch.Tensor:
    return sum((call(data(rank, 3, 4, seed=seed), ways) for ways in each.ways_of(rank)), torch.zeros(()))


def wrapped(ft: FTLib, program: Program) -> list[bytes]:
    model = built(Model())
    assert isinstance(model, Model)
    choices = {"bucket_mb": program.bucket_mb, "static_graph": program.static, "find_unused_parameters": program.find_unused}
    wrapper = DistributedDataParallel(ft, model, **choices)  # type: ignore[arg-type]

    def backward(model: Model, call: Callable[..., torch.Tensor], each: Pass, seed: int) -> None:
        with contextlib.nullcontext() if each.synchronized else wrapper.no_sync():
            before = fail_once(model, call, each, ft.rank, seed)
            loss = losses(call, each, ft.rank, seed)
            if before is not None:
                before()
            if each.twice:
                loss.backward(retain_graph=True)
            loss.backward()
        if each.synchronized:
            assert wrapper.status is Status.SUCCESS

    return train(program, model, wrapper, backward, [Optimizer(ft, each) for each in parts(model)])


def by_hand(ft: FTLib, program: Program) -> list[bytes]:
    model = built(Model())
    assert isinstance(model, Model)

    def backward(model: Model, call: Callable[..., torch.Tensor], each: Pass, seed: int) -> None:
        before = fail_once(model, call, each, ft.rank, seed)
        loss = losses(call, each, ft.rank, seed)
        if before is not None:
            before()
        for last in (False, True) if each.twice else (True,):
            loss.backward(retain_graph=not last)
            if each.synchronized:
                flags = torch.tensor([parameter.grad is not None for parameter in model.parameters()], dtype=torch.float32)
                assert ft.allreduce(flags, "SUM")
                assert ft.allreduce_average(model) is Status.SUCCESS
                for parameter, flag in zip(model.parameters(), flags, strict=True):
                    if program.find_unused and not flag:
                        parameter.grad = None

    return train(program, model, model, backward, parts(model))


def fail_once(model: Model, call: Callable[..., torch.Tensor], each: Pass, rank: int, seed: int) -> Callable[[], None] | None:
    """A backward that raises, whose gradients are dropped, at one member."""
    if not each.fails or rank != seed % SIZE:
        return None
    kept = [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]
    model.fails = True
    try:
        with pytest.raises(Broken):
            losses(call, each, rank, seed).backward()
    finally:
        model.fails = False

    def restore() -> None:
        for parameter, gradient in zip(model.parameters(), kept, strict=True):
            parameter.grad = gradient

    return restore


@pytest.fixture(scope="module", params=["copies", "views"])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with Crew(SIZE) as crew:
        if request.param == "views":
            crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
        yield crew


def test_every_program_has_the_bits_of_averages_by_hand(crew: Crew) -> None:
    @settings(max_examples=40)
    @given(programs)
    def property_(program: Program) -> None:
        found = crew.all(lambda ft, _: wrapped(ft, program))
        wanted = crew.all(lambda ft, _: by_hand(ft, program))
        assert found == wanted

    property_()
