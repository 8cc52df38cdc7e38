"""LocalSGD and DiLoCo through a manager's methods: the golden course, and real managers that train together."""

from __future__ import annotations

import functools
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
from torch import nn

from ftlib import ConfigError
from ftlib.torchft.local_sgd import DiLoCo, LocalSGD, extract_local_tensor
from ftlib.torchft.manager import Manager
from tests.harness.company import at_once
from tests.train.local_sgd.test_course import COURSES

from .replicas import manager, settle


class Alone:
    """A manager whose averages are this replica's own tensors."""

    _use_async_quorum = False

    def __init__(self) -> None:
        self.steps = 0
        self.sizes: list[int] = []
        self.parts: dict[str, Any] = {}
        self.commits = True

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        self.parts[key] = (load, save)

    def allow_state_dict_read(self) -> None: ...

    def disallow_state_dict_read(self) -> None: ...

    def start_quorum(self) -> None: ...

    def current_step(self) -> int:
        return self.steps

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Any:
        self.sizes.append(tensor.numel())
        return create_autospec(torch.distributed.Work, instance=True)

    def should_commit(self) -> bool:
        self.steps += self.commits
        return self.commits


def layers(count: int = 2) -> list[nn.Linear]:
    made = [nn.Linear(1, 1, bias=False) for _ in range(count)]
    for layer in made:
        nn.init.ones_(layer.weight)
    return made


def inner_steps(model: list[nn.Linear], inner: torch.optim.Optimizer, count: int) -> list[list[float]]:
    """The weights before each of ``count`` inner steps, each of which is -2."""
    seen = []
    for _ in range(count):
        seen.append([layer.weight.item() for layer in model])
        for layer in model:
            layer.weight.grad = torch.full((1, 1), 2.0)
        inner.step()
        inner.zero_grad()
    return seen


@pytest.mark.parametrize(("delay", "alpha"), sorted(COURSES))
@pytest.mark.parametrize("shared", [True, False])
def test_the_golden_course(delay: int, alpha: float, shared: bool) -> None:
    model = layers()
    weights = [layer.weight for layer in model]
    inner = torch.optim.SGD(weights, lr=1.0)
    one = torch.optim.SGD(weights, lr=2.0)
    outer: Any = one if shared else [torch.optim.SGD([weight], lr=2.0) for weight in weights]
    fake: Any = Alone()
    fragments: Any = list(model)
    with DiLoCo(fake, fragments, inner, outer, 6, fragment_sync_delay=delay, fragment_update_alpha=alpha) as diloco:
        seen = inner_steps(model, inner, 10)
        assert diloco._local_step == 1
    expected = [[float(value) for value in course.split()] for course in COURSES[delay, alpha]]
    assert [list(column) for column in zip(*seen, strict=True)] == expected
    inner_steps(model, inner, 6)
    assert fake.steps == 3, "a hook is left"


def test_a_sync_that_is_not_committed_returns_to_the_global_weights() -> None:
    model, fake = layers(1), Alone()
    fake.commits = False
    inner = torch.optim.SGD(model[0].parameters(), lr=1.0)
    outer = torch.optim.SGD(model[0].parameters(), lr=2.0)
    fragments: Any = list(model)
    manager: Any = fake
    with DiLoCo(manager, fragments, inner, outer, 2):
        assert [row[0] for row in inner_steps(model, inner, 4)] == [1, -1, 1, -1]


def test_its_state_is_loaded() -> None:
    model, fake = layers(2), Alone()
    outer = torch.optim.SGD([layer.weight for layer in model], lr=2.0, momentum=0.5)
    inner = torch.optim.SGD([layer.weight for layer in model], lr=1.0)
    fragments: Any = list(model)
    manager: Any = fake
    diloco = DiLoCo(manager, fragments, inner, outer, 2)
    assert set(fake.parts) == {"StreamingDiLoCoFragment_0", "StreamingDiLoCoFragment_1"}
    load, save = fake.parts["StreamingDiLoCoFragment_1"]
    state = save()
    assert set(state) == {"original_parameters", "outer_optimizer"}
    load({**state, "original_parameters": {"weight": torch.full((1, 1), 5.0)}})
    assert diloco._fragments[1].original_parameters["weight"].item() == 5
    assert diloco._fragments[0].original_parameters["weight"].item() == 1


@pytest.mark.parametrize(("limit", "sizes"), [(None, [6, 2, 6, 2]), (1, [16])])
def test_buckets(limit: int | None, sizes: list[int]) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    before = [parameter.clone() for parameter in model.parameters()]
    fake = Alone()
    inner, outer = torch.optim.SGD(model.parameters(), lr=1.0), torch.optim.SGD(model.parameters(), lr=1.0)
    manager: Any = fake
    with DiLoCo(manager, [model], inner, outer, 1, use_bucketization=limit is not None, bucket_cap_mb=limit):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        inner.step()
    assert fake.sizes == sizes
    assert all(torch.allclose(old - 1, new) for old, new in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"sync_every": 3}, "sync_every=3"),
        ({"fragment_sync_delay": 3}, "fragment_sync_delay=3"),
        ({"fragment_update_alpha": 1.5}, "fragment_update_alpha=1.5"),
        ({"outer_optimizer": []}, "0 optimizers for 2"),
    ],
)
def test_arguments_that_cannot_work(arguments: dict[str, Any], text: str) -> None:
    model = layers()
    inner = torch.optim.SGD([layer.weight for layer in model], lr=1.0)
    given = {"inner_optimizer": inner, "outer_optimizer": inner, "sync_every": 6, **arguments}
    fragments: Any = list(model)
    alone: Any = Alone()
    with pytest.raises(ConfigError, match=text):
        DiLoCo(alone, fragments, **given)
    mock = create_autospec(Manager)
    mock._use_async_quorum = True
    with pytest.raises(ValueError, match="use_async_quorum=False"):
        DiLoCo(mock, fragments, inner, inner, 6)


def test_local_sgd_averages_after_so_many_steps(monkeypatch: Any) -> None:
    settle(monkeypatch)
    managers = [manager(2), manager(2)]

    def run(number: int) -> list[float]:
        model = layers(1)
        inner = torch.optim.SGD(model[0].parameters(), lr=1.0 + number)
        with LocalSGD(managers[number], model[0], inner, 2):
            return [row[0] for row in inner_steps(model, inner, 5)]

    try:
        assert at_once(*[functools.partial(run, number) for number in range(2)]) == [[1, -1, -5, -7, -11], [1, -3, -5, -9, -11]]
        assert [each.current_step() for each in managers] == [2, 2]
    finally:
        at_once(*[each.shutdown for each in managers])


@pytest.mark.parametrize("quantized", [False, True])
def test_what_diloco_sends_is_quantized_if_asked_for(quantized: bool, monkeypatch: Any) -> None:
    """The global weights of both are the same bits, and near the mean, as near as fp8 comes."""
    settle(monkeypatch)
    managers = [manager(2, use_async_quorum=False) for _ in range(2)]
    moves = [torch.randn(20, 20, generator=torch.Generator().manual_seed(number)) for number in range(2)]
    start, moved = torch.ones(20, 20), (moves[0] + moves[1]) / 2

    def run(number: int) -> torch.Tensor:
        layer = nn.Linear(20, 20, bias=False)
        nn.init.ones_(layer.weight)
        inner, outer = torch.optim.SGD(layer.parameters(), lr=1.0), torch.optim.SGD(layer.parameters(), lr=1.0)
        with DiLoCo(managers[number], [layer], inner, outer, 1, should_quantize=quantized):
            layer.weight.grad = moves[number].clone()
            inner.step()
        return layer.weight.detach().clone()

    try:
        found = at_once(*[functools.partial(run, number) for number in range(2)])
        assert torch.equal(*found)
        off = float((start - found[0] - moved).norm() / moved.norm())
        assert (1e-3 < off < 0.1) if quantized else off < 1e-6, off
    finally:
        at_once(*[each.shutdown for each in managers])


@pytest.mark.parametrize("delay", [0, 1])
def test_diloco_with_two_managers(delay: int, monkeypatch: Any) -> None:
    settle(monkeypatch)
    made: list[tuple[Manager, DiLoCo]] = []

    def run() -> list[float]:
        model = layers()
        weights = [layer.weight for layer in model]
        inner, outer = torch.optim.SGD(weights, lr=1.0), torch.optim.SGD(weights, lr=0.7, momentum=0.5)
        own = manager(2, load_state_dict=lambda _: None, state_dict=dict, use_async_quorum=False)
        fragments: Any = list(model)
        with DiLoCo(own, fragments, inner, outer, 4, fragment_sync_delay=delay) as diloco:
            made.append((own, diloco))
            while own.current_step() < 20:
                inner_steps(model, inner, 1)
        return [float(fragment.original_parameters["weight"]) for fragment in diloco._fragments]

    try:
        found = at_once(run, run)
        assert found[0] == found[1] != [1.0, 1.0]
        assert [own.current_step() for own, _ in made] == [20, 20]
    finally:
        at_once(*[own.shutdown for own, _ in made])


def test_a_local_tensor_is_a_copy() -> None:
    tensor = torch.ones(2, requires_grad=True)
    copy = extract_local_tensor(tensor)
    assert torch.equal(copy, tensor) and copy.data_ptr() != tensor.data_ptr()
