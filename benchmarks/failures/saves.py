"""How long ``ft.save`` keeps the training, and how long until the checkpoint is complete: a directory beside S3.

    python -m benchmarks saves [--megabytes 100] [--repetitions 10]        # a minute

One worker; both places in turns. S3 is moto's server, in a process of this machine: how long it takes to send says nothing
about a real one, but training is not to wait for it. Beside them a ``clone`` of all tensors. Bars: a save to S3 takes what one
to a directory takes, and both what a copy does.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time

import torch
from torch import nn

from benchmarks.report import Report, parser, spread
from ftlib import FTLib
from ftlib.checkpoints.places import depot_of
from tests.harness.objects import ObjectStore

LIMIT = 120.0
"""Seconds until a checkpoint must be complete."""
SHARE, SLACK = 1.5, 0.02
"""A save may take so much of what it is compared with, and seconds more."""


class Stopwatch:
    """One worker, whose model is as large as asked for."""

    def __init__(self, ft: FTLib, megabytes: float) -> None:
        self._ft = ft
        self._model = nn.Linear(1000, int(megabytes * 250), bias=False)
        ft.register_state(model=self._model)

    def step(self) -> None:
        """One more, so that there is something to keep, and the checkpoint before can become complete."""
        self._model.weight.grad = torch.ones_like(self._model.weight)
        self._ft.allreduce_average(self._model)
        self._model.weight.grad = None

    def copied(self) -> float:
        """Seconds of a copy."""
        began = time.perf_counter()
        self._model.weight.detach().clone()
        return time.perf_counter() - began

    def saved(self, place: str) -> tuple[float, float]:
        """Seconds in ``save``, and until the checkpoint was complete."""
        self.step()
        depot, step = depot_of(place), self._ft.step
        began = time.perf_counter()
        self._ft.save(place, wait=True)
        returned = time.perf_counter() - began
        while not any(name.step == step for name in depot.complete()):
            if time.perf_counter() - began > LIMIT:
                raise TimeoutError(f"no checkpoint of step {step} at {place} within {LIMIT:.0f} s")
            self.step()
            time.sleep(0.02)  # between two looks
        return returned, time.perf_counter() - began


def main() -> int:
    """Print one table."""
    args = parser(__doc__, agent=False, megabytes=100.0, repetitions=10).parse_args()
    report = Report("Saving a checkpoint", 60.0)
    torch.set_num_threads(1)
    with ObjectStore() as store, tempfile.TemporaryDirectory() as folder, FTLib.init() as ft:
        os.environ.update(store.environment)
        places = {"a directory": folder, "S3": f"s3://{store.bucket()}/run"}
        watch = Stopwatch(ft, args.megabytes)
        copies: list[float] = []
        kept: dict[str, list[tuple[float, float]]] = {where: [] for where in places}
        for number in range(args.repetitions + 1):
            copies.append(watch.copied())
            for where in places if number % 2 else reversed(places):
                kept[where].append(watch.saved(places[where]))
        what = f"{args.megabytes:g} MB"
        report.row(f"{what}: a copy", spread(copies[1:]))
        returned = {where: [back for back, _ in each[1:]] for where, each in kept.items()}  # the first of each warms up
        for where, base in (("a directory", copies[1:]), ("S3", returned["a directory"])):
            limit = SHARE * statistics.median(base) + SLACK
            good = statistics.median(returned[where]) <= limit
            report.row(f"{what} to {where}: in ft.save", spread(returned[where]), bar=f"<= {limit * 1e3:.0f} ms", good=good)
            report.row(f"{what} to {where}: until it is complete", spread([whole for _, whole in kept[where][1:]], unit="s"))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
