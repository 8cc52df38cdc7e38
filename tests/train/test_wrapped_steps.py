"""``Optimizer`` of a wrapped model: backward averages, the step applies that or nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ftlib import ConfigError, DistributedDataParallel, FTLib, Optimizer, Status
from ftlib.core.backup.pattern import WINDOW
from ftlib.train.wrapped import Outcomes
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.latecomers import late, steps
from tests.ftlib.recovery.pupils import School, assert_equal
from tests.harness.basics import eventually
from tests.harness.company import company
from tests.train.test_optimizer import backward, data, equal, model_of, oracle
from tests.train.test_replaying import LateWrapping, Wrapping


@pytest.fixture(scope="module", params=["copies", "views"])
def pair(request: pytest.FixtureRequest) -> Iterator[Crew]:
    """Two workers; with registered state gradients are views of results."""
    with Crew(2) as crew:
        if request.param != "copies":
            crew.all(lambda ft, _: ft.register_state(state_dict=dict, load_state_dict=lambda _: None))
        yield crew


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize("how", ["optimizer", "model", "neither"])
@by_all("pair")
def test_averages_of_backward_are_applied_clipped(ft: FTLib, i: int, how: str) -> None:
    model, theirs = model_of(), model_of()
    wrapped = DistributedDataParallel(ft, model, first_bucket_mb=0.0001)
    inner, plain = sgd(model), sgd(theirs)
    optimizer = Optimizer(ft, inner, clip_norm=0.05 if how == "optimizer" else None)
    for step in range(4):
        optimizer.zero_grad()
        backward(wrapped, step, i)
        oracle(step, [theirs])
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results = [gradient for gradient in found if gradient._base is not None]
        assert bool(results) == ft.has_state or not step, "a session's first divisor is not known before it: those are copies"
        before = [result.clone() for result in results]
        norm = wrapped.clip_grad_norm_(0.05) if how == "model" else None
        if how != "neither":
            expected = nn.utils.clip_grad_norm_(theirs.parameters(), 0.05)
            assert norm is None or torch.equal(norm, expected)
        assert optimizer.step() is Status.SUCCESS
        plain.step()
        assert equal(model, theirs)
        assert all(map(torch.equal, results, before)), "a survivor may need them"


@by_all("pair")
def test_what_one_backward_fails_to_average_is_applied_by_nobody(ft: FTLib, i: int) -> None:
    """Whoever opens the next step, and however: the failure is forgotten then."""
    model = model_of()
    wrapped = DistributedDataParallel(ft, model)
    optimizer = Optimizer(ft, sgd(model), clip_norm=1.0)
    for forget in (optimizer.zero_grad, wrapped.zero_grad):
        before = copy.deepcopy(model)
        forget()
        backward(wrapped, 0, i, math.nan if i else 1.0)
        backward(wrapped, 1, i)  # a second one, which accumulates upon it
        assert optimizer.step() is Status.FAIL
        assert equal(model, before)
        forget()
        backward(wrapped, 2, i)
        assert optimizer.step() is Status.SUCCESS
        assert not equal(model, before)


@by_all("pair")
def test_one_step_of_two_backwards_with_one_failure(ft: FTLib, i: int) -> None:
    model = model_of()
    wrapped, optimizer = DistributedDataParallel(ft, model), Optimizer(ft, sgd(model))
    backward(wrapped, 0, i)
    loss = wrapped(data(1, i)).square().mean() * (math.inf if i else 1.0)
    loss.backward()
    before = copy.deepcopy(model)
    assert wrapped.status is Status.FAIL
    assert optimizer.step() is Status.FAIL
    assert equal(model, before)
    for parameter in model.parameters():
        parameter.grad = None
    backward(wrapped, 2, i)
    assert optimizer.step()


@by_all("pair")
def test_accumulated_gradients(ft: FTLib, i: int) -> None:
    model, theirs = model_of(), model_of()
    wrapped, optimizer, plain = DistributedDataParallel(ft, model), Optimizer(ft, sgd(model)), sgd(theirs)
    with wrapped.no_sync():
        backward(wrapped, 0, i)
    with pytest.raises(ConfigError, match=r"no backward pass .* no_sync"):
        optimizer.step()
    backward(wrapped, 1, i)
    found = []
    for step in range(2):
        oracle(step, [theirs])
        found.append([parameter.grad for parameter in theirs.parameters()])
    for parameter, one, other in zip(theirs.parameters(), *found, strict=True):
        assert one is not None and other is not None
        parameter.grad = one + other
    plain.step()
    assert optimizer.step()
    assert all(torch.allclose(a, b) for a, b in zip(model.parameters(), theirs.parameters(), strict=True))


@by_all("pair")
def test_two_optimizers_of_one_model_and_two_models_of_one_optimizer(ft: FTLib, i: int) -> None:
    model = model_of()
    wrapped = DistributedDataParallel(ft, model)
    halves = [Optimizer(ft, torch.optim.SGD(part.parameters(), lr=0.1)) for part in (model[0], model[2])]  # type: ignore[index]
    before = copy.deepcopy(model)
    backward(wrapped, 0, i)
    assert [half.step() for half in halves] == [Status.SUCCESS] * 2
    assert all(not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True))
    other = model_of(2)
    second = DistributedDataParallel(ft, other)
    both = Optimizer(ft, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1))
    both.zero_grad()
    backward(wrapped, 1, i)
    backward(second, 2, i, math.nan if i else 1.0)
    before = copy.deepcopy(model)
    assert both.step() is Status.FAIL, "all of it or nothing"
    assert equal(model, before)


@by_all("pair")
def test_models_of_the_same_form_keep_their_averages(ft: FTLib, i: int) -> None:
    """Their calls look alike; so do an average without a wrapper, and a backup worker's."""
    models = [model_of(seed) for seed in range(3)]
    wrapped = [DistributedDataParallel(ft, model, bucket_mb=1e-5, first_bucket_mb=1e-5) for model in models]
    loose = [nn.Parameter(parameter.detach().clone()) for parameter in models[0].parameters()]
    for step in range(3):
        found = []
        for model, wrapper in zip(models, wrapped, strict=True):
            wrapper.zero_grad()
            backward(wrapper, step, i)
            found.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
        for parameter in loose:
            parameter.grad = torch.full_like(parameter, 7.0)
        assert ft.allreduce_average(loose)
        for model, before in zip(models, found, strict=True):
            for parameter, gradient in zip(model.parameters(), before, strict=True):
                assert parameter.grad is not None and torch.equal(parameter.grad, gradient)


@by_all("pair")
def test_what_is_refused(ft: FTLib, i: int) -> None:
    model, extra = model_of(), nn.Parameter(torch.ones(3))
    wrapped = DistributedDataParallel(ft, model)
    optimizer = Optimizer(ft, torch.optim.SGD([*model.parameters(), extra], lr=0.1))
    with pytest.raises(ConfigError, match=r"call weigh\(\) of the DistributedDataParallel"):
        optimizer.weigh(2.0)
    backward(wrapped, 0, i)
    with pytest.raises(ConfigError, match=r"parameter 4 of the optimizer, of \[3\], is in no wrapped model"):
        optimizer.step()
    extra.requires_grad_(False)
    assert optimizer.step()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    backward(wrapped, 1, i)
    with pytest.raises(ConfigError, match=r"parameter 5 of the optimizer, of \[2\], is in no wrapped model"):
        optimizer.step()


def test_outcomes_of_a_step_end_with_the_step() -> None:
    outcomes, one, other = Outcomes(), (1, 2), (3,)
    assert outcomes.together(one) is None
    outcomes.ended(Status.FAIL)
    outcomes.ended(Status.SUCCESS)
    assert outcomes.together(one) is Status.FAIL
    assert outcomes.together(one) is Status.FAIL
    assert outcomes.together(other) is Status.FAIL, "at the second optimizer, too"
    outcomes.ended(Status.SUCCESS)
    assert outcomes.together(one) is outcomes.together(other) is Status.SUCCESS
    outcomes.begin(one)
    assert outcomes.together(one) is None
    outcomes.ended(None)
    assert outcomes.together(one) is outcomes.together(other) is Status.FAIL
    outcomes.begin(other)
    outcomes.ended(Status.SUCCESS)
    assert outcomes.together(other) is outcomes.together(one) is Status.SUCCESS, "the first one has looked at its failure"


def test_a_failure_is_of_the_optimizers_whose_step_had_begun() -> None:
    outcomes, one, other = Outcomes(), (1, 2), (3,)
    outcomes.ended(Status.FAIL)
    outcomes.begin(other)
    outcomes.ended(Status.SUCCESS)
    assert outcomes.together(other) is Status.SUCCESS
    assert outcomes.together(one) is Status.FAIL
    outcomes.begin(one)
    assert outcomes.together(one) is None


# --- joining, and being late -------------------------------------------------------------------------------------------


class Both(Wrapping):
    """Model and optimizer are wrapped."""

    def register(self, **registered: Any) -> None:
        super().register(**registered)
        self.wrapped = DistributedDataParallel(self.ft, self.model, first_bucket_mb=0.001)

    def gradients(self) -> None:
        self.wrapper.zero_grad()
        features = self.model[0].in_features
        output = self.wrapped(torch.randn(8, features, generator=self._random))
        loss = self.scaler.scale(output.square().mean())
        (loss * math.inf if self.ft.step % 9 == 8 else loss).backward()


class LateBoth(Both, LateWrapping):
    """It may be late, too."""


def test_a_joiner_of_wrapped_models_has_what_the_others_have() -> None:
    with company(2, "gloo", nonfinite="pass", recovery_bandwidth=100_000) as crew:
        made = School(crew, Both)
        try:
            eventually(lambda: made.pupils[0].ft.step > 3, "they train")
            joiner = made.enrol()
            steps(joiner, 12)
        finally:
            made.end()
    assert assert_equal(*made.pupils) >= 10
    assert joiner.ft.metrics()["state_loads"] == 1


def test_a_late_worker_of_wrapped_models_has_what_the_others_have() -> None:
    with late(make=LateBoth, nonfinite="pass") as made:
        first, _, last = made.pupils
        last.stay_away()
        steps(first, 12)
        last.come()
        made.end()
    assert assert_equal(*made.pupils) > WINDOW // 4
    assert set(first.hashes) - set(last.hashes), "it has missed some"
