"""What a step costs through Lightning and accelerate, beside the plain loop: the same workers, model and batches, in turns.

    python -m benchmarks integrations            # a minute
    python -m benchmarks integrations --rounds 12

Four workers do blocks of steps of each way, one after the other, ``--rounds`` times. A step's time is that from the end of one
step to the end of the next; the first ten of a block do not count. Bar: the median of each way is at most 1.02 of the
plain loop's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.report import Report, parser, spread
from ftlib import FTLib

ROOT = Path(__file__).resolve().parents[1]
BAR = 1.02
WARM = 10
WAYS = ("plain", "lightning", "accelerate")


class Batches:
    """So many of the same batch."""

    def __init__(self, count: int, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._count, self._batch = count, batch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self._count):
            yield self._batch


class Work:
    """One worker."""

    def __init__(self, ft: FTLib, args: argparse.Namespace) -> None:
        self.ft, self.steps = ft, args.steps
        torch.manual_seed(7)
        width = args.width
        self.model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        self.batch = torch.randn(args.batch, 256), torch.randint(0, 10, (args.batch,))
        self.ended: list[float] = []

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def plain(self) -> None:
        optimizer = self.optimizer()

        def apply() -> None:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()

        self.ft.register_state(model=self.model, optimizer=optimizer, apply=apply)
        for inputs, targets in Batches(self.steps, self.batch):
            optimizer.zero_grad()
            cross_entropy(self.model(inputs), targets).backward()
            if self.ft.allreduce_average(self.model):
                apply()
            self.ended.append(time.perf_counter())

    def lightning(self) -> None:
        import lightning.pytorch as pl

        from ftlib.lightning import FTCallback, FTStrategy

        work = self

        class Module(pl.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.inner = work.model

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                return cross_entropy(self.inner(batch[0]), batch[1])

            def configure_optimizers(self) -> Any:
                return work.optimizer()

        class Clock(pl.Callback):
            def on_train_batch_end(self, *_: Any) -> None:
                work.ended.append(time.perf_counter())

        trainer = pl.Trainer(
            max_epochs=1, gradient_clip_val=1.0, strategy=FTStrategy(self.ft), devices=1,
            callbacks=[FTCallback(self.ft), Clock()],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), Batches(self.steps, self.batch))

    def accelerate(self) -> None:
        from ftlib.accelerate import FTAccelerator

        accelerator = FTAccelerator(self.ft, clip_norm=1.0, cpu=True)
        model, optimizer = accelerator.prepare(self.model, self.optimizer())
        for inputs, targets in Batches(self.steps, self.batch):
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(cross_entropy(model(inputs), targets))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            self.ended.append(time.perf_counter())


def worker(args: argparse.Namespace) -> None:
    """All rounds; rank 0 prints the seconds of every step that counts."""
    warnings.simplefilter("ignore")
    with FTLib.init() as ft:
        work = Work(ft, args)
        for number in range(args.rounds):
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:  # in another order each time
                work.ended = []
                getattr(work, way)()
                if ft.rank == 0:
                    took = [later - former for former, later in zip(work.ended, work.ended[1:], strict=False)][WARM:]
                    print(json.dumps({"way": way, "took": took}), flush=True)
        ft.barrier()


def main() -> int:
    """The figures."""
    reads = parser(__doc__, agent=False)
    reads.add_argument("--rounds", type=int, default=6)
    reads.add_argument("--steps", type=int, default=100, help="of a block")
    reads.add_argument("--workers", type=int, default=4)
    reads.add_argument("--width", type=int, default=512)
    reads.add_argument("--batch", type=int, default=256)
    reads.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = reads.parse_args()
    if args.worker:
        worker(args)
        return 0
    report = Report(f"A step of {args.workers} workers, in {args.rounds} rounds of {args.steps} steps each way", 60.0)
    given = [f"--{name}={getattr(args, name)}" for name in ("rounds", "steps", "width", "batch")]
    run = [sys.executable, "-m", "ftlib.launch", "-n", str(args.workers)]
    command = [*run, "-m", "benchmarks.integrations", "--worker", *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=580)
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for line in done.stdout.splitlines():
        record = line.partition("] ")[2]
        if record.startswith('{"way"'):
            found = json.loads(record)
            took[found["way"]] += found["took"]
    medians = {way: statistics.median(values) for way, values in took.items()}
    report.row("plain loop", spread(took["plain"]))
    for way in WAYS[1:]:
        share = medians[way] / medians["plain"]
        report.row(way, f"{spread(took[way])}: {share:.3f} of it", bar=f"<= {BAR:g}", good=share <= BAR)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
