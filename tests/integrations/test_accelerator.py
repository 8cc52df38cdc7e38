"""``FTAccelerator`` in one process: what it refuses, and that a joiner's repetition of a step is the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ConfigError, ElasticSampler, FTLib, Status
from ftlib.state.replay import replay

pytest.importorskip("accelerate", reason="not installed: pip install 'ftlib[hf]'")

CLIP = 0.01
"""Below the gradients."""


@pytest.fixture
def ft() -> Iterator[FTLib]:
    with FTLib.init(config={}) as ft:
        yield ft


def made(ft: FTLib, **more: Any) -> Any:
    from ftlib.accelerate import FTAccelerator

    return FTAccelerator(ft, cpu=True, **more)


def failing() -> Callable[[object], None]:
    """A callback that raises ZeroDivisionError once."""
    pending = [ZeroDivisionError()]

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    return fails


@pytest.mark.parametrize("how", ["norm", "value"])
def test_a_joiner_repeats_what_the_loop_does(ft: FTLib, how: str) -> None:
    accelerator = made(ft, **{f"clip_{how}": CLIP})
    model = nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    clip = getattr(accelerator, f"clip_grad_{how}_")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    accelerator.backward(model(torch.ones(4, 3)).square().sum())
    averages = [parameter.grad.clone() for parameter in model.parameters()]
    clip(model.parameters(), CLIP)
    optimizer.step()
    after = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, old, average in zip(model.parameters(), before, averages, strict=True):
            parameter.copy_(old)
            parameter.grad = average
    assert ft.registered is not None
    replay(ft.registered)
    assert all(torch.equal(parameter, new) for parameter, new in zip(model.parameters(), after, strict=True))
    assert all((new - old).abs().max() <= CLIP * 1.001 for new, old in zip(after, before, strict=True)), "it was clipped"


def test_a_callback_that_raises_keeps_no_worker_from_the_step(ft: FTLib) -> None:
    """The others make the step, and the loop goes on."""
    accelerator = made(ft)
    model = nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    ft.on_view_change(failing())
    before = model.weight.detach().clone()
    with pytest.raises(ZeroDivisionError):
        accelerator.backward(model(torch.ones(4, 3)).square().sum())
    assert accelerator.status is Status.NO_NEED
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_a_call_that_raises_grants_no_step(ft: FTLib) -> None:
    """What was averaged in the step before says nothing of the gradients that are here."""
    accelerator = made(ft)
    model = nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for step in range(2):
        before = model.weight.detach().clone()
        loss = model(torch.ones(4, 3)).square().sum()
        if step:
            model.weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", weight.grad.to_sparse()))
        with pytest.raises(ConfigError, match="sparse") if step else contextlib.nullcontext():
            accelerator.backward(loss)
        optimizer.step()
        assert torch.equal(model.weight, before) is bool(step)
    assert accelerator.status is None
    assert model.weight.grad is None


def test_what_is_trained_later_is_averaged(ft: FTLib) -> None:
    """Else nobody would see that its gradients cannot be applied."""
    accelerator = made(ft)
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(4, 3)).square().sum())
    optimizer.step()
    optimizer.zero_grad()
    model.bias.requires_grad_(True)
    model.bias.register_hook(lambda gradient: gradient * torch.nan)
    accelerator.backward(model(torch.ones(4, 3)).square().sum())
    optimizer.step()
    assert accelerator.status is Status.FAIL
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def scaled(ft: FTLib) -> tuple[Any, nn.Module, Any]:
    """An accelerator with a gradient scaler, model and optimizer; on a CPU accelerate makes no scaler."""
    accelerator = made(ft, clip_norm=CLIP)
    accelerator.scaler, accelerator.native_amp = torch.amp.GradScaler("cpu", init_scale=1024.0), True
    accelerator.state._mixed_precision = "fp16"  # clip_grad_norm_ unscales for no other one
    model = nn.Linear(3, 2)
    optimizer = accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    return accelerator, accelerator.prepare_model(model), optimizer


@pytest.mark.parametrize("steps", [True, False], ids=["steps", "asks"])
def test_a_scaler_goes_on_after_a_step_that_was_not_granted(steps: bool) -> None:
    """``steps``: whether the loop calls ``step`` where it is not granted."""
    with FTLib.init(config={}, nonfinite="pass", min_size=2, step_timeout=0.1) as ft:
        accelerator, model, optimizer = scaled(ft)
        for _ in range(2):
            accelerator.backward(model(torch.ones(4, 3)).square().sum())
            assert accelerator.status is Status.FAIL
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            if steps or accelerator.granted:
                optimizer.step()
            optimizer.zero_grad()
        joins(ft, model)
        assert accelerator.scaler.get_scale() == 1024.0


def test_a_scaler_that_has_seen_no_loss_repeats_a_step() -> None:
    """As at a joiner that catches up before its first batch."""
    with FTLib.init(config={}, nonfinite="pass") as ft:
        accelerator, model, _ = scaled(ft)
        accelerator.register_once()
        joins(ft, model)


def joins(ft: FTLib, model: nn.Module) -> None:
    """Repeat a step of the others', and see that it changes the model."""
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    assert ft.registered is not None
    replay(ft.registered)
    assert not torch.equal(model.weight, before)


def test_what_a_joiner_would_not_know_of_is_refused(ft: FTLib) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    for accelerator, announced in ((made(ft), None), (made(ft, clip_value=0.5), 0.5), (made(ft, clip_norm=CLIP), None)):
        with pytest.raises(ConfigError, match=f"clips values by {CLIP}: give FTAccelerator clip_value={CLIP},"):
            accelerator.clip_grad_value_([weight], CLIP)
        assert torch.equal(weight.grad, torch.ones(3))
        accelerator.clip_grad_value_([weight], float("inf"))
        if announced is not None:
            accelerator.clip_grad_value_([weight], announced)
            assert torch.equal(weight.grad, torch.full((3,), announced))
            weight.grad = torch.ones(3)
    with pytest.raises(ConfigError, match="clip by one of them"):
        made(ft, clip_norm=CLIP, clip_value=CLIP)


def test_a_second_elastic_sampler_is_refused(ft: FTLib) -> None:
    data = TensorDataset(torch.ones(8, 3))
    accelerator, sampler = made(ft), ElasticSampler(data, batch_size=2)
    prepared = accelerator.prepare(DataLoader(data, batch_sampler=sampler))
    assert accelerator.prepare(prepared) is prepared
    accelerator.prepare(DataLoader(data, batch_sampler=sampler))
    accelerator.prepare(DataLoader(data, batch_size=2))
    with pytest.raises(ConfigError, match="two elastic samplers were prepared: train on one of a ConcatDataset"):
        accelerator.prepare(DataLoader(data, batch_sampler=ElasticSampler(data, batch_size=2)))


def test_a_step_looks_for_nothing_that_was_known_before(ft: FTLib, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate looks for a package in all of ``sys.path`` twice a step, and reads the signature of ``zero_grad``."""
    import accelerate.optimizer

    accelerator = made(ft, gradient_accumulation_steps=2)
    model = nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    looked: list[str] = []
    monkeypatch.setattr(accelerate.optimizer, "is_lomo_available", lambda: bool(looked.append("package")))
    monkeypatch.setattr(accelerate.optimizer, "inspect", SimpleNamespace(signature=lambda _: looked.append("signature")))
    steps = []
    for _ in range(4):
        before = model.weight.detach().clone()
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(4, 3)).square().sum())
            optimizer.step()
            optimizer.zero_grad()
        steps.append((not torch.equal(model.weight, before), model.weight.grad is None))
    assert steps == [(False, False), (True, True)] * 2, "with the second batch of each step"
    assert not looked


def test_an_optimizer_drops_gradients_in_its_own_way(ft: FTLib) -> None:
    class Own(torch.optim.SGD):
        def zero_grad(self) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.zero_()

    accelerator = made(ft)
    model = nn.Linear(3, 2)
    model, optimizer = accelerator.prepare(model, Own(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.ones(4, 3)).square().sum())
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(model.weight.grad, torch.zeros(2, 3))
