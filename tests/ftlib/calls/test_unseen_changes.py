"""Gradients that are views of a result and were changed in ways that no version counts: no survivor gets them as the result."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import pytest
import torch

from ftlib import FTLib, Status
from tests.harness.basics import eventually
from tests.harness.company import at_once, company

SIZES = [100, 30_000]
"""Few elements are looked at in another way than many."""
STEPS = 4


def through_data(gradient: torch.Tensor) -> None:
    gradient.data.mul_(0.5)


def through_numpy(gradient: torch.Tensor) -> None:
    gradient.detach().numpy()[-1] *= 0.5


class Learner:
    """Its weights are the sum of the averages, each as ``change`` has left it."""

    def __init__(self, ft: FTLib, change: Callable[[torch.Tensor], None]) -> None:
        self.ft = ft
        self.weights = [torch.nn.Parameter(torch.zeros(size)) for size in SIZES]
        self.model = torch.nn.ParameterList(self.weights)
        self._change = change
        ft.register_state(model=self.model)

    def step(self) -> Status:
        for weight in self.weights:
            weight.grad = torch.full_like(weight, self.ft.step + 1.0, requires_grad=False)
        status = self.ft.allreduce_average(self.model, views=True)
        with torch.no_grad():
            for weight in self.weights:
                assert weight.grad is not None
                version = weight.grad._version
                self._change(weight.grad)
                assert weight.grad._version == version
                weight.add_(weight.grad)
        return status

    def learn(self, steps: int) -> None:
        """Until it has made so many, or has got the state of those who have."""
        while self.ft.step < steps:
            assert self.step() is Status.SUCCESS


@pytest.mark.parametrize("nonfinite", ["veto", "pass"])
@pytest.mark.parametrize("change", [through_data, through_numpy])
def test_who_misses_the_result_gets_the_state(
    change: Callable[[torch.Tensor], None], nonfinite: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An operation ends at two members and fails at the third, which reports it once the others have changed what they got."""
    with company(3, nonfinite=nonfinite) as crew, caplog.at_level(logging.INFO, logger="ftlib"):
        learners: list[Learner] = at_once(*[functools.partial(Learner, ft, change) for ft in crew.members])
        at_once(*[functools.partial(learner.learn, STEPS) for learner in learners])
        late = learners[1]
        others = [learners[0], learners[2]]
        behind = late.ft._lives.life.consensus
        report = behind.average_failure

        def reported(call: int, suspects: Sequence[str]) -> None:
            eventually(lambda: all(bool(each.weights[-1].detach()[-1] > before) for each in others), "they have changed it")
            report(call, suspects)

        before = float(late.weights[-1].detach()[-1])
        behind.average_failure = reported
        crew.hub.fail_next(late.ft.rank, 1, finish_elsewhere=True)
        caplog.clear()
        at_once(*[functools.partial(learner.learn, STEPS + 3) for learner in learners])
        events = [getattr(record, "ftlib_event", "") for record in caplog.records]
        assert "cannot_give" in events
        assert "donation" not in events
        for learner in learners:
            assert all(torch.equal(one, other) for one, other in zip(learner.weights, late.weights, strict=True))
            assert learner.ft.step == late.ft.step
