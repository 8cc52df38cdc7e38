"""What a step costs through Lightning and accelerate, beside the plain loop: the same workers, model and batches, in turns.

    python -m benchmarks integrations            # two minutes
    python -m benchmarks integrations --rounds 12

Four workers do blocks of steps of each way, one after the other, ``--rounds`` times. A step's time is that from one batch that
the loop asks for to the next; the first ten of a block do not count. Bar: the median of each way is at most 1.02 of the plain
loop's.

The same loops run without averages, too: a framework by itself, with nothing of ftlib in it, beside a plain loop by itself.
What is left of the difference is what ftlib costs in that framework beyond what it costs in a plain loop.
Without averages no worker waits for another, and on cores that they share a step is long or short as the scheduler likes: there
a block's mean stands for its steps. Processor time, of all threads of one worker, says the same with less noise.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.report import Report, parser, spread
from ftlib import FTLib

ROOT = Path(__file__).resolve().parents[2]
BAR = 1.02
WARM = 10
WAYS = ("plain", "lightning", "accelerate")
NAMES = {"plain": "plain loop", "lightning": "Lightning", "accelerate": "accelerate"}
BLOCKS = [(way, averages) for averages in (True, False) for way in WAYS]

Way = tuple[str, bool]
"""Its name; whether it averages."""
Block = tuple[list[float], list[float]]
"""Of each of its steps that count: seconds, and seconds of processor time."""


class Batches:
    """So many of the same batch. The clock is here: what asks for the next batch has ended a step, whichever loop that is."""

    def __init__(self, count: int, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._count, self._batch = count, batch
        self.asked: list[tuple[float, float]] = []
        """When each batch was asked for: the time, and this process's processor time, in seconds."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self._count):
            self.asked.append((time.perf_counter(), time.process_time()))
            yield self._batch


class Work:
    """One worker. Each way trains with averages, or without: then nothing of ftlib is in it."""

    def __init__(self, ft: FTLib, args: argparse.Namespace) -> None:
        self.ft = ft
        torch.manual_seed(7)
        width = args.width
        self.model = nn.Sequential(nn.Linear(256, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
        self.batches = Batches(args.steps, (torch.randn(args.batch, 256), torch.randint(0, 10, (args.batch,))))

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def plain(self, *, averages: bool) -> None:
        optimizer = self.optimizer()

        def apply() -> None:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()

        if averages:
            self.ft.register_state(model=self.model, optimizer=optimizer, apply=apply)
        for inputs, targets in self.batches:
            optimizer.zero_grad()
            cross_entropy(self.model(inputs), targets).backward()
            if not averages or self.ft.allreduce_average(self.model):
                apply()

    def lightning(self, *, averages: bool) -> None:
        import lightning.pytorch as pl
        from lightning.pytorch.strategies import SingleDeviceStrategy

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

        trainer = pl.Trainer(
            max_epochs=1, gradient_clip_val=1.0, strategy=FTStrategy(self.ft) if averages else SingleDeviceStrategy("cpu"),
            devices=1, callbacks=[FTCallback(self.ft)] if averages else [],
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Module(), self.batches)

    def accelerate(self, *, averages: bool) -> None:
        from accelerate import Accelerator

        from ftlib.accelerate import FTAccelerator, alone

        if averages:
            accelerator = FTAccelerator(self.ft, clip_norm=1.0, cpu=True)
        else:
            with alone():
                accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(self.model, self.optimizer())
        for inputs, targets in self.batches:
            with accelerator.accumulate(model):
                optimizer.zero_grad()
                accelerator.backward(cross_entropy(model(inputs), targets))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()


def worker(args: argparse.Namespace) -> None:
    """All rounds; rank 0 prints the seconds of every step that counts, and the processor time of each."""
    warnings.simplefilter("ignore")
    with FTLib.init() as ft:
        work = Work(ft, args)
        for number in range(args.rounds):
            turn = number % len(BLOCKS)
            for way, averages in BLOCKS[turn:] + BLOCKS[:turn]:  # in another order each time
                asked = work.batches.asked
                asked.clear()
                ft.barrier()  # all do the same at the same time
                getattr(work, way)(averages=averages)
                if ft.rank == 0:
                    pairs = list(pairwise(asked[WARM:]))
                    took, busy = ([later[k] - former[k] for former, later in pairs] for k in (0, 1))
                    print(json.dumps({"way": way, "averages": averages, "took": took, "busy": busy}), flush=True)
        ft.barrier()


def show(report: Report, blocks: dict[Way, list[Block]]) -> None:
    """The rows."""
    took, busy = {}, {}
    for way, averages in BLOCKS:
        found = blocks[way, averages]
        steps = [step for took, _ in found for step in took] if averages else [statistics.fmean(took) for took, _ in found]
        means = [statistics.fmean(busy) for _, busy in found]
        took[way, averages], busy[way, averages] = statistics.median(steps), statistics.median(means)
        name = NAMES[way] if averages else f"{NAMES[way]} by itself, without averages"
        more, share = took[way, averages] - took["plain", averages], took[way, averages] / took["plain", averages]
        if way == "plain":
            report.row(name, spread(steps), spread(means), "")
        else:
            beside = f"{share:.3f}: {more * 1e3:+.2f} ms"
            bar: dict[str, Any] = {"bar": f"<= {BAR:g}", "good": share <= BAR} if averages else {}
            report.row(name, spread(steps), spread(means), beside, **bar)
    for way in WAYS[1:]:
        ours = [(each[way, True] - each["plain", True]) - (each[way, False] - each["plain", False]) for each in (took, busy)]
        report.row(f"ftlib in {NAMES[way]}, beyond both", *(f"{seconds * 1e3:+.2f} ms" for seconds in ours), "")


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
    title = f"A step of {args.workers} workers, in {args.rounds} rounds of {args.steps} steps each way"
    report = Report(title, 18.0 * args.rounds, ("step", "processor time of a worker", "beside the plain loop"))
    given = [f"--{name}={getattr(args, name)}" for name in ("rounds", "steps", "width", "batch")]
    run = [sys.executable, "-m", "ftlib.launch", "-n", str(args.workers)]
    command = [*run, "-m", "benchmarks.steps.integrations", "--worker", *given]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=580)
    blocks: dict[Way, list[Block]] = {way: [] for way in BLOCKS}
    for line in done.stdout.splitlines():
        record = line.partition("] ")[2]
        if record.startswith('{"way"'):
            found = json.loads(record)
            blocks[found["way"], found["averages"]].append((found["took"], found["busy"]))
    show(report, blocks)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
