"""Gradients that are views of the result: whatever the program does with them, averages stay right."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ftlib import ConfigError, FTLib, Status
from tests.ftlib.crews.crew import Crew, by_all

BUCKET_MB = 0.004
"""A thousand float32 values: a weight of 40 x 100 has several buckets."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    """Two workers with registered state."""
    with Crew(2, bucket_mb=BUCKET_MB) as crew:
        crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
        yield crew


def backward(model: nn.Linear, value: float) -> None:
    """Every element of the weight's gradient is ``value``, and of the bias's 1."""
    model(torch.full((1, model.in_features), value)).sum().backward()


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("width", [3, 100])
@by_all("pair")
def test_they_are_views_from_the_second_step_on(ft: FTLib, i: int, width: int) -> None:
    model = nn.Linear(width, 40)
    for step in range(4):
        model.zero_grad()
        backward(model, float(i + step))
        assert ft.allreduce_average(model, views=True) is Status.SUCCESS
        assert torch.equal(gradients(model)[0], torch.full((40, width), 0.5 + step))
        assert step == 0 or all(gradient._base is not None for gradient in gradients(model))


@pytest.mark.parametrize("width", [3, 100])
@by_all("pair")
def test_models_of_the_same_shape_keep_their_own(ft: FTLib, i: int, width: int) -> None:
    models = [nn.Linear(width, 40) for _ in range(3)]
    for step in range(3):
        for number, model in enumerate(models):
            model.zero_grad()
            backward(model, float(10 * number + step))
            assert ft.allreduce_average(model, views=True)
        for number, model in enumerate(models):
            assert torch.equal(gradients(model)[0], torch.full((40, width), float(10 * number + step)))


@pytest.mark.parametrize("how", ["data", "to", "turned", "transposed", "trained"])
@pytest.mark.parametrize("width", [3, 40, 100])
@by_all("pair")
def test_a_gradient_that_gets_other_memory_is_the_programs_own(ft: FTLib, i: int, width: int, how: str) -> None:
    """What the average is computed in stays where it is, as the next ones are."""
    model = nn.Linear(width, 40)
    for step in range(5):
        model.zero_grad()
        backward(model, float(i + step))
        assert ft.allreduce_average(model, views=True)
        weight, bias = gradients(model)
        assert torch.equal(weight, torch.full((40, width), 0.5 + step))
        assert torch.equal(bias, torch.ones(40))
        assert weight.is_contiguous() and not weight.requires_grad
        if how == "to":
            model.double().float()
        for gradient in (weight, bias):
            if how == "data":
                gradient.data = gradient.data * 3
            elif how == "turned":
                gradient.unsqueeze_(0)
            elif how == "transposed":
                gradient.t_()
            elif how == "trained":
                gradient.requires_grad_()


@pytest.mark.parametrize("width", [3, 100])
@pytest.mark.parametrize("zero", [False, True])
@by_all("pair")
def test_what_the_program_leaves_there_is_an_input(ft: FTLib, i: int, width: int, zero: bool) -> None:
    model = nn.Linear(width, 40)
    expected = 0.0
    for step in range(5):
        if zero:
            model.zero_grad(set_to_none=False)
            expected = 0.0
        backward(model, float(i + step))
        expected += 0.5 + step
        assert ft.allreduce_average(model, views=True)
        assert torch.allclose(gradients(model)[0], torch.full((40, width), expected))


@by_all("pair")
def test_one_that_fails_leaves_gradients_as_they_were(ft: FTLib, i: int) -> None:
    model = nn.Linear(3, 40)
    for bad in (False, True):
        model.zero_grad()
        backward(model, float("nan") if bad and i else 2.0)
        before = gradients(model)
        status = ft.allreduce_average(model, views=True)
        assert status is (Status.FAIL if bad else Status.SUCCESS)
    assert all(a is b for a, b in zip(gradients(model), before, strict=True))


@by_all("pair")
def test_other_dtypes_and_forms_are_copied(ft: FTLib, i: int) -> None:
    half, last = nn.Linear(3, 4).to(torch.bfloat16), nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    owners = [*half.parameters(), *last.parameters()]
    for step in range(3):
        for owner in owners:
            owner.grad = torch.full_like(owner, float(i + step))
        assert ft.allreduce_average(owners, views=True)
        assert all(bool((owner.grad == 0.5 + step).all()) for owner in owners)


@by_all("pair")
def test_what_is_no_gradient_is_refused(ft: FTLib, i: int) -> None:
    with pytest.raises(ConfigError, match=r"views=True is for gradients: pass a module or its parameters"):
        ft.allreduce_average(torch.ones(3), views=True)


def test_without_state_they_are_copied_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def body(ft: FTLib, i: int) -> None:
        model = nn.Linear(3, 4)
        for _ in range(3):
            model.zero_grad()
            backward(model, 1.0)
            assert ft.allreduce_average(model, views=True)
        assert all(gradient._base is None for gradient in gradients(model))

    with caplog.at_level(logging.INFO, "ftlib"), Crew(2) as crew:
        crew.all(body)
    assert sum("call register_state first" in record.getMessage() for record in caplog.records) == 2
