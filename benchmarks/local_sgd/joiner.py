"""A worker that joins two others in the middle of a round: what that costs them, and in which sync it counts."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace

import torch
from torch import nn

from benchmarks.failures.faults import crew
from benchmarks.report import Report
from ftlib import DiLoCo
from tests.harness.cluster import Cluster, Worker
from tests.harness.worker import Lines, Task, joined, place

BAR = 0.150
STEP = 0.05
EVERY = 40
LIMIT = 180.0


def joiner(args: Namespace, report: Report) -> None:
    """One after the other."""
    more, late = [], []
    given = {"parameters": args.parameters}
    settings = {"agent": "thread"}
    for number in range(args.repetitions):
        report.say(f"joiner {number + 1} of {args.repetitions}")
        with crew("joiner", 2, program="benchmarks.local_sgd.joiner:train", given=given, settings=settings) as cluster:
            longer, syncs = _one(cluster)
        more.append(longer)
        late.append(syncs)
    name = f"joiner: {args.parameters / 1e6:.0f} M parameters"
    report.bar(f"{name}, others' longest inner step beyond the usual", more, BAR, unit="ms")
    report.row(
        f"{name}, syncs from its state to where it counts", str(late), bar="the first", good=all(each == 0 for each in late)
    )


def _one(cluster: Cluster) -> tuple[float, int]:
    """By how much the others' longest inner step was longer, and how many syncs they made before the joiner counted."""
    others = list(cluster.workers)
    cluster.until("both have synced", lambda: all(worker.last.get("step", 0) >= 2 for worker in others), LIMIT)
    began = time.monotonic()
    usual = statistics.median(line["seconds"] for worker in others for line in worker.events if line.get("event") == "step")
    new = cluster.join()
    cluster.until("it has synced twice", lambda: len(new.calls) >= 2, LIMIT)
    end = time.monotonic()
    events = [line for worker in others for line in worker.events if line.get("event") == "step"]
    return max(line["seconds"] for line in events if began < line["t"] < end) - usual, _late(new, others)


def _late(new: Worker, others: list[Worker]) -> int:
    """How many syncs the others made after the joiner had its state, before one that it was in."""
    [there] = [line["t"] for line in new.events if line.get("event") == "there"]
    first = new.calls[0]["step"]
    return sum(1 for line in others[0].calls if line["t"] > there and line["step"] < first)


def prepare() -> None:
    """Import what an optimizer imports at its first step; start no thread."""
    torch.set_num_threads(1)
    weight = nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.SGD([weight], lr=1.0).step()


def train(task: Task, lines: Lines) -> int:
    """A ``program`` of ``worker.Task``: inner steps without a momentum, a line for each, and one for each sync."""
    torch.set_num_threads(1)
    side = int(task.given["parameters"] ** 0.5)
    model = nn.Linear(side, side, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    small = nn.Parameter(model.weight.detach()[0])  # an inner step changes one row: a device would do the rest
    inner = torch.optim.SGD([small], lr=0.1)
    small.grad = torch.ones_like(small)
    with joined(task, lines) as ft:
        diloco = DiLoCo(
            ft, model, inner=None, outer=lambda weights: torch.optim.SGD(weights, lr=0.7, momentum=0.9), sync_every=EVERY
        )
        ft.register_state(model=diloco)
        with diloco:
            lines.write(event="there")
            while True:
                ft.catch_up()  # a border: without inner= nothing else tells where a step begins
                began, before = time.monotonic(), diloco.syncs
                time.sleep(STEP)
                inner.step()
                diloco.step()
                if diloco.syncs > before:
                    lines.write(**place(ft))
                else:
                    lines.write(event="step", seconds=time.monotonic() - began)
