"""``FTCallback`` and ``FTTrainer`` in one process: what their trainers do where an average does not end as it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ftlib import FTLib, Status


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


@pytest.mark.filterwarnings("ignore:.*")  # about this machine, and what could be faster
def test_a_step_of_lightning_is_made_though_a_callback_raises(ft: FTLib) -> None:
    """The others make it. Then the exception ends the training."""
    pl = pytest.importorskip("lightning.pytorch", reason="not installed: pip install 'ftlib[lightning]'")
    from ftlib.lightning import Batches, FTCallback, FTStrategy

    class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.inner(batch[0]).sum()
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1.0)

    breaks(ft)
    module = Module()
    before = module.inner.weight.detach().clone()
    trainer = pl.Trainer(
        max_epochs=1, strategy=FTStrategy(ft), devices=1, callbacks=[FTCallback(ft)], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(Broken):
        trainer.fit(module, Batches(DataLoader(TensorDataset(torch.ones(3, 2)))))
    assert ft.step == trainer.global_step == 1
    assert torch.equal(module.inner.weight, before - 1.0)


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
