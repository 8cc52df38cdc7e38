"""One small job in four ways: a plain loop, Lightning, accelerate, transformers. A program for ``ftlib run``.

    learner.py WAY STEPS KILL [--elastic | --stream] [--overflow]

The worker of rank 2 kills itself before call number KILL (0: never), once. Batches are a worker's own sequence, by its rank
and the number of the batch, or with ``--elastic`` an ``ElasticSampler``'s, with ``--stream`` an ``ElasticStream``'s. A step
has two batches, clipping, a schedule.
With ``--overflow`` a gradient scaler is at work, and in step 3 the gradients of the worker of rank 1 alone overflow.
Lines on stdout: a step, this worker's loss in it, and a digest of all parameters after it; and the scaler's scale.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from ftlib import ElasticSampler, ElasticStream, FTLib

ACCUMULATE, CLIP, BATCH = 2, 0.05, 8
OVERFLOW, HUGE = 3, 1e38
"""The step of the overflow, and what the loss is multiplied by."""


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Sixteen numbers, and one of four labels."""

    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, generator=generator)
        return {"x": x, "labels": (x[:4].argmax()).long()}


def of_shard(shard: int, start: int) -> Iterator[dict[str, torch.Tensor]]:
    """A hundred of the numbers, from number ``start`` of the shard on."""
    data = Numbers()
    return (data[100 * shard + number] for number in range(start, 100))


class Own:
    """This worker's own batches, one after the other; without an end."""

    def __init__(self, place: Callable[[], int]) -> None:
        self.place = place

    def __iter__(self) -> Any:
        data, number = Numbers(), 0
        while True:
            first = (self.place() * 97 + number * 31) % 500
            items = [data[(first + k) % 600] for k in range(BATCH)]
            yield {key: torch.stack([item[key] for item in items]) for key in items[0]}
            number += 1


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.body(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


class Job:
    def __init__(self, steps: int, kill: int, *, elastic: bool, stream: bool, overflow: bool) -> None:
        self.steps, self.kill = steps, kill
        self.ft = FTLib.init(**({"nonfinite": "pass"} if overflow else {}))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=200) if overflow else None
        self.model = Model()
        self.sampler: Any = None
        self.dataset: Any = Numbers()
        self.loader: Any = Own(self.place)
        if elastic:
            self.sampler = ElasticSampler(self.dataset, batch_size=BATCH, seed=3)
            self.loader = DataLoader(self.dataset, batch_sampler=self.sampler)
        if stream:
            self.sampler = self.dataset = ElasticStream(range(6), of_shard, batch_size=BATCH, seed=3)
            self.loader = self.sampler.loader()
        self.losses: list[float] = []
        self.told = 0
        self.began_as: int | None = None

    def place(self) -> int:
        """The rank that this worker had first: the order in which averages are added up is that of ranks."""
        if self.began_as is None:
            self.began_as = self.ft.rank
        return self.began_as

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def schedule(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step % 5))

    def computed(self, loss: torch.Tensor) -> torch.Tensor:
        """A loss, before its backward pass."""
        self.losses.append(loss.item())
        if self.scaler is not None and self.ft.step + 1 == OVERFLOW and self.place() == 1:
            loss = loss * HUGE
        if self.kill and len(self.losses) == ACCUMULATE and self.ft.step + 1 == self.kill:
            self.ft.barrier()  # all have finished the step before: who dies may else be the only one that has
            first = Path("killed")
            if self.place() == 2 and not first.exists():
                first.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return loss

    def stepped(self) -> None:
        """After a step's calls and what follows from them."""
        found = xxhash.xxh3_128()
        for parameter in self.model.parameters():
            found.update(parameter.detach().numpy().tobytes())
        line = {"place": self.place(), "step": self.ft.step, "losses": self.losses, "digest": found.hexdigest()}
        if self.scaler is not None:
            line["scale"] = self.scaler.get_scale()
        print(json.dumps(line), flush=True)
        self.losses, self.told = [], self.ft.step

    # --- in four ways ----------------------------------------------------------------------------------------------------

    def plain(self) -> None:
        ft, model, optimizer = self.ft, self.model, self.optimizer()
        scheduler = self.schedule(optimizer)

        def apply() -> None:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            scheduler.step()

        ft.register_state(model=model, optimizer=optimizer, extra=scheduler, sampler=self.sampler, apply=apply)
        counts = 0
        while ft.step < self.steps:
            for number, batch in enumerate(self.loader):
                if self.sampler is not None:
                    counts += self.sampler.counts(number % ACCUMULATE) > 0
                (self.computed(model(**batch)["loss"]) / ACCUMULATE).backward()
                if number % ACCUMULATE == ACCUMULATE - 1:
                    if ft.allreduce_average(model, batches=1 if self.sampler is None else ACCUMULATE):
                        apply()
                    self.stepped()
                    optimizer.zero_grad()
                    if ft.step >= self.steps:
                        break

    def lightning(self) -> None:
        import lightning.pytorch as pl
        from lightning.pytorch.plugins.precision import MixedPrecision

        from ftlib.lightning import Batches, FTCallback, FTStrategy

        job = self

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.inner = job.model

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                return job.computed(self.inner(**batch)["loss"])

            def configure_optimizers(self) -> Any:
                optimizer = job.optimizer()
                scheduler = {"scheduler": job.schedule(optimizer), "interval": "step"}
                return {"optimizer": optimizer, "lr_scheduler": scheduler}

        class Reports(pl.Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if job.ft.step != job.told:
                    assert trainer.global_step == job.ft.step
                    assert trainer.is_global_zero is (job.ft.rank == 0)
                    job.stepped()

        class Scaled(MixedPrecision):
            """All that belongs to the scaler, in 32 bits."""

            def forward_context(self) -> Any:
                return contextlib.nullcontext()

        scaled = {} if self.scaler is None else {"plugins": [Scaled("16-mixed", "cpu", self.scaler)]}
        trainer = pl.Trainer(
            max_steps=self.steps, max_epochs=-1, accumulate_grad_batches=ACCUMULATE, gradient_clip_val=CLIP,
            strategy=FTStrategy(self.ft), devices=1, callbacks=[FTCallback(self.ft, self.sampler), Reports()],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, **scaled,
        )  # fmt: skip
        trainer.fit(Module(), Batches(self.loader))
        assert trainer.global_step == self.ft.step

    def accelerate(self) -> None:
        from ftlib.accelerate import FTAccelerator

        accelerator = FTAccelerator(self.ft, clip_norm=CLIP, gradient_accumulation_steps=ACCUMULATE, cpu=True)
        optimizer = self.optimizer()
        accelerator.scaler = self.scaler  # on a CPU accelerate makes none
        model, optimizer, scheduler = accelerator.prepare(self.model, optimizer, self.schedule(optimizer))
        loader = self.loader if self.sampler is None else accelerator.prepare(self.loader)
        while self.ft.step < self.steps:
            for batch in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(self.computed(model(**batch)["loss"]))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), CLIP)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    self.stepped()
                    if self.ft.step >= self.steps:
                        break

    def transformers(self) -> None:
        from transformers import TrainerCallback

        from ftlib.transformers import FTTrainer, FTTrainingArguments

        job = self

        class Trainer(FTTrainer):
            def compute_loss(self, *args: Any, **more: Any) -> Any:
                return job.computed(super().compute_loss(*args, **more))

            def get_train_dataloader(self) -> Any:
                return job.loader if job.sampler is None else super().get_train_dataloader()

        class Reports(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                assert state.global_step == job.ft.step
                job.stepped()

        optimizer = self.optimizer()
        arguments = FTTrainingArguments(
            "trained", max_steps=self.steps, per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATE,
            max_grad_norm=CLIP, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, seed=3,
            logging_strategy="no",
        )  # fmt: skip
        trainer = Trainer(
            self.ft, self.model, arguments, train_dataset=self.dataset, optimizers=(optimizer, self.schedule(optimizer)),
            callbacks=[Reports()],
        )  # fmt: skip
        trainer.accelerator.scaler = self.scaler
        trainer.train()


if __name__ == "__main__":
    way, steps, kill = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    job = Job(steps, kill, elastic="--elastic" in sys.argv, stream="--stream" in sys.argv, overflow="--overflow" in sys.argv)
    getattr(job, way)()
    job.ft.close()
