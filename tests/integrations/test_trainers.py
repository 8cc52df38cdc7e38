"""``FTCallback`` and ``FTTrainer`` in one process: what their trainers do where an average does not end as it should."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ftlib import FTLib, Status

quiet = pytest.mark.filterwarnings("ignore:.*")
"""Lightning warns of this machine, and of what could be faster."""


@pytest.fixture
def ft() -> Iterator[FTLib]:
    with FTLib.init(config={}) as ft:
        yield ft


class Broken(Exception):
    """What a callback of the program's raises."""


def breaks(ft: FTLib) -> None:
    """Have a callback raise at the end of the first call."""
    pending = [Broken()]

    def fails(_: object) -> None:
        if pending:
            raise pending.pop()

    ft.on_view_change(fails)


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning.pytorch", reason="not installed: pip install 'ftlib[lightning]'")


def fit(lightning: Any, ft: FTLib, module: Any, callbacks: Sequence[Any] = (), **more: Any) -> Any:
    """A trainer that has fitted ``module`` to six batches."""
    from ftlib.lightning import Batches, FTCallback, FTStrategy

    trainer = lightning.Trainer(
        max_epochs=1, strategy=FTStrategy(ft), devices=1, callbacks=[FTCallback(ft), *callbacks], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **more,
    )  # fmt: skip
    trainer.fit(module, Batches(DataLoader(TensorDataset(torch.ones(6, 2)))))
    return trainer


def module_of(lightning: Any, schedule: Any = None, *, spoilt: int | None = None, rate: Any = 1.0) -> Any:
    """A module with one layer. ``schedule``: makes a scheduler of its optimizer. ``spoilt``: the batch whose loss is nan."""

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(batch[0]).sum()
            return loss * float("nan") if number == spoilt else loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)
            if schedule is None:
                return optimizer
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": "step"}}

    return Module()


@quiet
def test_a_step_of_lightning_is_made_though_a_callback_raises(ft: FTLib, lightning: Any) -> None:
    """The others make it. Then the exception ends the training."""
    breaks(ft)
    module = module_of(lightning)
    before = module.inner.weight.detach().clone()
    with pytest.raises(Broken):
        fit(lightning, ft, module)
    assert ft.step == module.trainer.global_step == 1
    assert torch.equal(module.inner.weight, before - 1.0)


@quiet
def test_what_is_trained_later_is_averaged(ft: FTLib, lightning: Any) -> None:
    """Else nobody would see that its gradients cannot be applied. Lightning has a callback that trains more and more."""
    module = module_of(lightning)
    module.inner.bias.requires_grad_(False)

    class Thaws(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, _trainer: Any, module: Any, _batch: Any, number: int) -> None:
            if number == 3:
                module.inner.bias.requires_grad_(True).register_hook(lambda gradient: gradient * torch.nan)

    fit(lightning, ft, module, [Thaws()])
    assert ft.step == 3
    assert module.inner.bias.isfinite().all()


@quiet
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_a_step_that_was_not_granted_leaves_the_schedule_alone(ft: FTLib, lightning: Any, rate: Any) -> None:
    """Also the momentum, which some schedules change."""
    seen: list[tuple[float, float]] = []

    def schedule(optimizer: torch.optim.Optimizer) -> Any:
        def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
            seen.append((float(optimizer.param_groups[0]["lr"]), optimizer.param_groups[0]["momentum"]))

        optimizer.register_step_pre_hook(note)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=10)

    fit(lightning, ft, module_of(lightning, schedule, spoilt=3, rate=rate))
    assert ft.step == 5
    assert seen.pop(3) == seen[3], "the step was not granted, and then made"
    expected = torch.optim.SGD([torch.ones(1)], lr=0.1, momentum=0.9)
    schedule(expected)
    assert seen[0] == pytest.approx((expected.param_groups[0]["lr"], expected.param_groups[0]["momentum"]))
    assert len(set(seen)) == 5


@quiet
def test_a_step_that_was_not_granted_leaves_the_scaler_alone(lightning: Any) -> None:
    """It would count as one without overflow, at this worker, and its scale would rise before the others'."""
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Scaled(MixedPrecision):
        def forward_context(self) -> Any:
            return contextlib.nullcontext()

    scaler = torch.amp.GradScaler("cpu", growth_interval=100)
    with FTLib.init(config={}, nonfinite="pass", min_size=2, step_timeout=0.1) as ft:
        fit(lightning, ft, module_of(lightning), plugins=[Scaled("16-mixed", "cpu", scaler)], limit_train_batches=2)
        assert ft.step == 0
    assert scaler.state_dict()["_growth_tracker"] == 0


@pytest.mark.soak
def test_a_step_of_transformers_is_made_though_a_callback_raises(ft: FTLib, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="not installed: pip install 'ftlib[hf]'")
    from ftlib.transformers import FTTrainer, FTTrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.inner(x).sum()}

    breaks(ft)
    model = Model()
    before = model.inner.weight.detach().clone()
    arguments = FTTrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=1, max_grad_norm=0.0, use_cpu=True, save_strategy="no",
        report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    data: Any = [{"x": torch.ones(2)} for _ in range(3)]
    trainer = FTTrainer(ft, model, arguments, train_dataset=data, optimizers=(optimizer, schedule))
    with pytest.raises(Broken):
        trainer.train()
    assert trainer.accelerator.status is Status.NO_NEED
    assert ft.step == trainer.state.global_step == 1
    assert torch.equal(model.inner.weight, before - 1.0)
