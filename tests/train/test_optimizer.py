"""``Optimizer`` does what the wrapped one does, with averages: torch's optimizers, schedulers and scalers are the oracle."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import ftlib
from ftlib import ConfigError, FTLib, Status
from ftlib.train.optimizer import Optimizer
from tests.ftlib.crews.crew import Crew, by_all
from tests.ftlib.crews.workers import Worker, workers

MAKE: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adam": functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "fused": functools.partial(torch.optim.AdamW, lr=0.01, fused=True),
    "each": functools.partial(torch.optim.RMSprop, lr=0.01, foreach=False),
}


@pytest.fixture(scope="module")
def pair() -> Iterator[Crew]:
    with Crew(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def passing() -> Iterator[Crew]:
    with Crew(2, nonfinite="pass") as crew:
        yield crew


def model_of(seed: int = 1) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)  # not torch's own, which all threads share
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def data(step: int, who: int) -> torch.Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + who))


def backward(model: nn.Module, step: int, who: int, scale: float = 1.0) -> None:
    (model(data(step, who)).square().mean() * scale).backward()


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def oracle(step: int, models: list[nn.Module]) -> None:
    """The average of the gradients, in each of these copies of one model: as two workers have it."""
    found = []
    for who in range(2):
        each = copy.deepcopy(models[0])
        each.zero_grad()
        backward(each, step, who)
        found.append([parameter.grad for parameter in each.parameters()])
    for model in models:
        for parameter, one, other in zip(model.parameters(), *found, strict=True):
            assert one is not None and other is not None
            parameter.grad = (one + other) / 2.0


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("name", MAKE)
@by_all("pair")
def test_steps_are_those_of_the_wrapped_one_on_averages(ft: FTLib, i: int, name: str, clip_norm: float | None) -> None:
    model, theirs = model_of(), model_of()
    optimizer = Optimizer(ft, MAKE[name](model.parameters()), clip_norm=clip_norm)
    plain = MAKE[name](theirs.parameters())
    before = ft.step
    for step in range(5):
        optimizer.zero_grad()
        assert optimizer.status is None
        backward(model, step, i)
        oracle(step, [theirs])
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        plain.step()
        assert optimizer.step() is Status.SUCCESS
        assert optimizer.status is Status.SUCCESS
        assert equal(model, theirs)
    assert ft.step == before + 5


@by_all("pair")
def test_weights_count(ft: FTLib, i: int) -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer(ft, torch.optim.SGD([weight], lr=1.0))
    for expected in (-7.0, -12.0):  # the second step is weighed as by default
        weight.grad = torch.full((2,), 4.0 + 4.0 * i) if expected == -7.0 else torch.full((2,), 4.0 + 2.0 * i)
        if expected == -7.0:
            optimizer.weigh(1.0 + 2.0 * i)
        assert optimizer.step()
        assert torch.equal(weight, torch.full((2,), expected))


@by_all("pair")
def test_a_weight_holds_until_an_average_has_ended(ft: FTLib, i: int) -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer(ft, torch.optim.SGD([weight], lr=1.0))
    optimizer.weigh(1.0 + 2.0 * i)
    weight.grad = torch.ones(2).to_sparse()
    with pytest.raises(ConfigError, match="sparse"):
        optimizer.step()
    weight.grad = torch.full((2,), 4.0 + 4.0 * i)
    assert optimizer.step()
    assert torch.equal(weight, torch.full((2,), -7.0))
    optimizer.weigh(-1.0)
    with pytest.raises(ConfigError, match=r"weight=-1.0"):
        optimizer.step()
    pending = [ZeroDivisionError()]

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    ft.on_view_change(fails)
    ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    optimizer.weigh(1.0 + 2.0 * i)
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    weight.grad = torch.full((2,), 4.0 + 2.0 * i)
    assert optimizer.step()
    assert torch.equal(weight, torch.full((2,), -19.0))


@pytest.mark.parametrize("others", ["another step", "another call", "itself", "nothing"])
@by_all("pair")
def test_a_weight_is_gone_with_its_own_step_only(ft: FTLib, i: int, others: str) -> None:
    """One worker declines the others' call, or all decline: then it was the step of which something was said first."""
    one, two = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(2))
    other, optimizer = (Optimizer(ft, torch.optim.SGD([each], lr=1.0)) for each in (one, two))
    one.grad, two.grad = torch.ones(1), torch.full((2,), 4.0 * i)
    other.weigh(1.0)
    optimizer.weigh(1.0 + 2.0 * i)
    if i == 1 or others == "nothing":
        assert ft.decline() is Status.FAIL
    elif others == "another call":
        assert ft.allreduce(torch.ones(3)) is Status.FAIL
    else:
        assert (other if others == "another step" else optimizer).step() is Status.FAIL
    assert optimizer.step()
    assert two.tolist() == [-2.0 if others == "itself" else -3.0] * 2


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@by_all("pair")
def test_a_callback_that_raises_keeps_no_worker_from_the_step(ft: FTLib, i: int, clip_norm: float | None) -> None:
    weight, pending = nn.Parameter(torch.zeros(1)), [ZeroDivisionError()]
    optimizer = Optimizer(ft, torch.optim.SGD([weight], lr=1.0), clip_norm=clip_norm)

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    if i == 1:
        ft.on_view_change(fails)
        ft._plane.news.changes.append(ft.view)  # type: ignore[arg-type]
    for step in range(3):
        optimizer.zero_grad()
        weight.grad = torch.full((1,), 4.0)
        with pytest.raises(ZeroDivisionError) if i == 1 and not step else contextlib.nullcontext():
            optimizer.step()
        assert optimizer.status is Status.SUCCESS
    torch.testing.assert_close(weight.detach(), torch.full((1,), -12.0 if clip_norm is None else -3.0))


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@by_all("pair")
def test_what_is_vetoed_is_applied_by_nobody(ft: FTLib, i: int, bad: float) -> None:
    model = model_of()
    optimizer = Optimizer(ft, torch.optim.Adam(model.parameters()), clip_norm=1e-3)
    ran: list[object] = []
    optimizer.register_step_pre_hook(lambda *_: ran.append(0))
    before = copy.deepcopy(model)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step, i)
        if i == 1:
            model[2].bias.grad[0] = bad  # type: ignore[index,union-attr]
        kept = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        assert optimizer.step() is Status.FAIL
        assert optimizer.status is Status.FAIL
        found = [parameter.grad for parameter in model.parameters()]
        assert all(
            torch.equal(one.nan_to_num(9.0), other.nan_to_num(9.0))
            for one, other in zip(kept, found, strict=True)
            if other is not None
        )
    assert equal(model, before) and not optimizer.state and not ran
    optimizer.zero_grad()
    backward(model, 9, i)
    assert optimizer.step() is Status.SUCCESS
    assert not equal(model, before) and len(ran) == 1


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1.0 + step)),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 3)], [2]
    ),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, total_steps=9),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], o
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.2, step_size_up=2, cycle_momentum=True),
    "averaged": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=3),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("around", ["wrapper", "wrapped"])
@pytest.mark.parametrize("name", SCHEDULERS)
@workers(1)
def test_schedulers(worker: Worker, name: str, around: str) -> None:
    model, theirs = model_of(), model_of()
    inner, plain = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, theirs))
    optimizer = Optimizer(worker.ft, inner)
    scheduler, expected = SCHEDULERS[name](optimizer if around == "wrapper" else inner), SCHEDULERS[name](plain)
    for step in range(7):
        for each, its in ((model, optimizer), (theirs, plain)):
            its.zero_grad()
            backward(each, step, 0)
            its.step()
        scheduler.step()
        expected.step()
        assert scheduler.get_last_lr() == expected.get_last_lr()
        assert optimizer.param_groups[0]["lr"] == inner.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
        assert equal(model, theirs)
    kept = expected.state_dict().keys()
    assert scheduler.state_dict().keys() == kept


@workers(1)
def test_a_scheduler_is_told_what_comes_first(worker: Worker) -> None:
    model = model_of()
    optimizer = Optimizer(worker.ft, torch.optim.SGD(model.parameters(), lr=0.1))
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    with pytest.warns(UserWarning, match=r"lr_scheduler.step"):
        scheduler.step()
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for _ in range(3):
        plateau.step(1.0)
    assert optimizer.param_groups[0]["lr"] < 0.01


@workers(1)
def test_it_is_the_wrapped_one_in_all_else(worker: Worker) -> None:
    model = model_of()
    inner = torch.optim.Adam(model[0].parameters(), lr=0.1)  # type: ignore[index]
    optimizer = Optimizer(worker.ft, inner)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert ftlib.Optimizer is Optimizer
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.2})  # type: ignore[index]
    assert [group["lr"] for group in inner.param_groups] == [0.1, 0.2]
    backward(model, 0, 0)
    assert optimizer.step() is Status.NO_NEED
    assert len(optimizer.state) == 4
    assert optimizer.state_dict().keys() == inner.state_dict().keys() == {"state", "param_groups"}
    other = Optimizer(worker.ft, torch.optim.Adam([{"params": part.parameters()} for part in (model[0], model[2])]))  # type: ignore[index]
    stale = other.param_groups
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert other.param_groups is not stale, "torch makes new groups"
    assert [group["lr"] for group in other.param_groups] == [0.1, 0.2]
    assert len(other.state) == 4
    optimizer.param_groups = list(inner.param_groups)
    assert optimizer.param_groups is inner.param_groups
    assert "Adam" in repr(optimizer) and "clip_norm" in repr(optimizer)
    with pytest.raises(AttributeError):
        optimizer.nothing_like_that  # noqa: B018
    optimizer.zero_grad(set_to_none=False)
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in model.parameters())


@workers(1)
def test_hooks_run_around_applied_steps(worker: Worker) -> None:
    weight = nn.Parameter(torch.zeros(2))
    optimizer = Optimizer(worker.ft, torch.optim.SGD([weight], lr=1.0), clip_norm=1.0)
    ran: list[tuple[str, float]] = []
    optimizer.register_step_pre_hook(lambda *_: ran.append(("before", weight[0].item())))
    handle = optimizer.register_step_post_hook(lambda *_: ran.append(("after", weight[0].item())))
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    weight.grad = torch.tensor([0.5, 0.0])
    optimizer.step()
    assert ran == [("before", 0.0), ("after", -0.5)]
    handle.remove()
    weight.grad = torch.tensor([math.nan, 0.0])
    assert optimizer.step() is Status.FAIL
    weight.grad = torch.tensor([0.5, 0.0])
    optimizer.step()
    assert ran[2:] == [("before", -0.5)]
    assert optimizer.state_dict()["more"] == 1


@workers(1)
def test_copies_are_of_the_wrapped_one(worker: Worker) -> None:
    model = model_of()
    optimizer = Optimizer(worker.ft, torch.optim.Adam(model.parameters(), lr=0.5))
    scheduler = lr_scheduler.StepLR(optimizer, 1)
    backward(model, 0, 0)
    optimizer.step()
    scheduler.step()
    for made in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert type(made) is torch.optim.Adam
        assert made.param_groups[0]["lr"] == 0.05 and len(made.state) == 4
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    optimizer.load_state_dict(torch.load(buffer))


# --- a gradient scaler -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@by_all("passing")
def test_a_scaler_is_used_in_the_order_of_torch(ft: FTLib, i: int, clip_norm: float | None) -> None:
    """Unscale, clip, step, update: compared with that written out, on averages; an overflow at one worker skips the step."""
    model, theirs = model_of(), model_of()
    mine, plain = (torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2) for _ in range(2))
    optimizer = Optimizer(ft, torch.optim.Adam(model.parameters(), lr=0.01), clip_norm=clip_norm, scaler=mine)
    other = torch.optim.Adam(theirs.parameters(), lr=0.01)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        before, made = copy.deepcopy(model), len(optimizer.state)
        mine.scale(model(data(step, i)).square().mean()).backward()
        if step == 4 and i == 0:
            model[0].weight.grad[0, 0] = math.inf  # type: ignore[index,union-attr]
        average = [nn.Parameter(parameter.grad.clone()) for parameter in model.parameters() if parameter.grad is not None]
        for parameter in average:
            parameter.grad = parameter.detach().clone()
        ft.allreduce_average(average)
        for parameter, found in zip(theirs.parameters(), average, strict=True):
            parameter.grad = found.grad
        plain.scale(torch.zeros(()))
        plain.unscale_(other)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        plain.step(other)
        plain.update()
        assert optimizer.step() is Status.SUCCESS
        assert equal(model, theirs)
        assert equal(model, before) == (step == 4)
        assert mine.state_dict() == plain.state_dict()
        assert made <= len(optimizer.state)
        scales.append(mine.get_scale())
    assert max(scales) > 64 and scales[4] == scales[3] / 2


@workers(1, nonfinite="pass")
def test_a_scaler_that_is_switched_off_does_nothing(worker: Worker) -> None:
    model, theirs = model_of(), model_of()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    optimizer, plain = (
        Optimizer(worker.ft, torch.optim.SGD(model.parameters(), lr=0.1), scaler=scaler),
        torch.optim.SGD(theirs.parameters(), lr=0.1),
    )
    for each, its in ((model, optimizer), (theirs, plain)):
        backward(each, 0, 0)
        its.step()
    assert equal(model, theirs)


@workers(1, nonfinite="pass")
def test_a_step_without_any_gradient(worker: Worker) -> None:
    """As torch's optimizers, which step nothing then."""
    model = model_of()
    optimizer = Optimizer(
        worker.ft, torch.optim.SGD(model.parameters(), lr=0.1), clip_norm=1.0, scaler=torch.amp.GradScaler("cpu")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert optimizer.step() is Status.NO_NEED
    assert equal(model, model_of())


# --- what is refused ---------------------------------------------------------------------------------------------------


@workers(1)
def test_what_is_refused(worker: Worker) -> None:
    ft, weight = worker.ft, nn.Parameter(torch.ones(2))
    inner = torch.optim.SGD([weight], lr=0.1)
    optimizer = Optimizer(ft, inner)
    with pytest.raises(ConfigError, match=r"closure.*backward"):
        optimizer.step(lambda: 1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="LBFGS calls a closure"):
        Optimizer(ft, torch.optim.LBFGS([weight]))
    with pytest.raises(ConfigError, match=r"wraps an optimizer of torch.optim, not a Optimizer"):
        Optimizer(ft, optimizer)
    with pytest.raises(ConfigError, match="not a list"):
        Optimizer(ft, [weight])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="not an FTLib"):
        Optimizer(inner, ft)  # type: ignore[arg-type]
    for norm in (0.0, -1.0, math.nan, math.inf, "1"):
        with pytest.raises(ConfigError, match="clip_norm="):
            Optimizer(ft, inner, clip_norm=norm)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"must be a torch.amp.GradScaler"):
        Optimizer(ft, inner, scaler=1.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nonfinite=pass"):
        Optimizer(ft, inner, scaler=torch.amp.GradScaler("cpu"))
    Optimizer(ft, inner, scaler=torch.amp.GradScaler("cpu", enabled=False))


@workers(1, nonfinite="pass")
def test_a_scaler_has_one_optimizer(worker: Worker) -> None:
    weight, scaler = nn.Parameter(torch.ones(2)), torch.amp.GradScaler("cpu")
    inner = torch.optim.SGD([weight], lr=0.1)
    optimizer = Optimizer(worker.ft, inner, scaler=scaler)
    Optimizer(worker.ft, inner, scaler=scaler)
    with pytest.raises(ConfigError, match="belongs to another"):
        Optimizer(worker.ft, torch.optim.SGD([weight], lr=0.1), scaler=scaler)
    weight.grad = scaler.scale(torch.ones(2))
    with pytest.raises(ConfigError, match=r"GradScaler.step was given an ftlib.Optimizer"):
        scaler.step(optimizer)


@workers(1)
def test_a_schedule_is_written_into_all_groups(worker: Worker) -> None:
    weight, bias = (torch.zeros(2, requires_grad=True) for _ in range(2))
    inner = torch.optim.SGD([{"params": [weight]}, {"params": [bias], "lr": 7.0}], lr=1.0)
    optimizer = Optimizer(worker.ft, inner, schedule=lambda done: 10.0**-done)
    worker.ft.register_state(optimizer=optimizer)
    for rate in (1.0, 0.1):
        weight.grad, bias.grad = torch.ones(2), torch.ones(2)
        assert optimizer.step()
        assert [group["lr"] for group in inner.param_groups] == [rate, rate]
    assert torch.allclose(weight, torch.full((2,), -1.1)) and torch.allclose(bias, torch.full((2,), -1.1))
    worker.ft.register_state(optimizer=inner)
    with pytest.raises(ConfigError, match=r"ftlib.Optimizer sets the learning rate before its step"):
        optimizer.step()
    not_callable: Any = 0.1
    with pytest.raises(ConfigError, match=r"schedule=0.1 must be a function"):
        Optimizer(worker.ft, inner, schedule=not_callable)


@pytest.mark.parametrize("first", ["registered", "made"])
@workers(1)
def test_a_joiner_that_would_not_clip_is_noticed(worker: Worker, first: str) -> None:
    model = model_of()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    if first == "made":
        optimizer = Optimizer(worker.ft, inner, clip_norm=1.0)
        worker.ft.register_state(model=model, optimizer=inner)
    else:
        worker.ft.register_state(model=model, optimizer=inner)
        optimizer = Optimizer(worker.ft, inner, clip_norm=1.0)
    with pytest.raises(ConfigError, match=r"ftlib.Optimizer clips gradients before its step"):
        optimizer.step()
    assert worker.ft.step == 0
    assert Optimizer(worker.ft, inner).step(), "a plain step is what a joiner does anyway"
    worker.ft.register_state(model=model, optimizer=inner, apply=inner.step)
    assert Optimizer(worker.ft, inner, clip_norm=1.0).step(), "the program has said what a step is"
    optimizer = Optimizer(worker.ft, inner, clip_norm=1.0)
    worker.ft.register_state(model=model, optimizer=optimizer)
    assert optimizer.step()
