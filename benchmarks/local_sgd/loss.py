"""What is learned while workers die and join, beside undisturbed runs."""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from tests.harness.cluster import Cluster

WORKERS = 3
EVERY = {"digits": 20, "transformer": 10}
KILL_EVERY = 8
LIMIT = 300.0
REST = 0.015
"""Seconds that an inner step rests: a worker that joins has imported everything before the next one is killed."""


def loss(args: Namespace, report: Report) -> None:
    """The chosen tasks, all seeds, with and without faults."""
    curves: dict[tuple[str, bool], list[list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="ftlib-loss-") as directory:
        program, settings = "benchmarks.local_sgd.learning:learn", {"agent": "thread"}
        with Cluster(Path(directory), program=program, settings=settings) as cluster:  # one fork server for all jobs
            for number, (task, disturbed, seed) in enumerate(itertools.product(args.tasks, (False, True), range(args.seeds))):
                report.say(f"{task}, seed {seed}, {'with' if disturbed else 'without'} faults")
                cluster.clear(Path(directory) / str(number))
                curve = _course(cluster, task, seed, args.syncs, disturbed=disturbed)
                curves.setdefault((task, disturbed), []).append(curve)
    for task in args.tasks:
        calm, faulty = ([curve[-1] for curve in curves[task, disturbed]] for disturbed in (False, True))
        apart = statistics.fmean(faulty) - statistics.fmean(calm)
        deviation = statistics.stdev(calm) if len(calm) > 1 else 0.0
        text = f"{statistics.fmean(faulty):.4f} beside {statistics.fmean(calm):.4f}"
        report.row(
            f"loss: {task}, {args.seeds} seeds, {args.syncs} syncs",
            f"{text}, {apart / deviation:+.2f} deviations" if deviation else text,
            bar="within 2",
            good=abs(apart) <= 2 * deviation if deviation else None,
        )
    if args.picture is not None:
        _draw(curves, args.picture)
        print(f"drawn: {args.picture}", flush=True)


def _course(cluster: Cluster, task: str, seed: int, syncs: int, *, disturbed: bool) -> list[float]:
    """The loss after each sync, of one job."""
    chance = random.Random(seed)
    given: dict[str, Any] = {"task": task, "seed": seed, "every": EVERY[task], "rest": REST}
    cluster.found(WORKERS, given=given)
    for due in range(KILL_EVERY, syncs, KILL_EVERY) if disturbed else ():
        _wait(cluster, due)
        chance.choice(cluster.alive()).kill()
        _wait(cluster, due + 1)
        joiner = cluster.join(given=given)
        cluster.until(f"{joiner.task.name} counts", lambda joiner=joiner: bool(joiner.calls), LIMIT)
    _wait(cluster, syncs + 1)
    found: dict[int, float] = {}
    for worker in cluster.workers:
        for line in worker.calls:
            found.setdefault(line["step"], line["loss"])
    return [found[step] for step in sorted(found) if step <= syncs]


def _wait(cluster: Cluster, sync: int) -> None:
    cluster.until(f"sync {sync}", lambda: max(w.last.get("step", 0) for w in cluster.alive()) >= sync, LIMIT)


def _draw(curves: dict[tuple[str, bool], list[list[float]]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tasks: Sequence[str] = sorted({task for task, _ in curves})
    figure, axes = plt.subplots(1, len(tasks), figsize=(6 * len(tasks), 4), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for disturbed, colour, text in (
            (False, "tab:grey", "undisturbed"),
            (True, "tab:red", "a worker killed every 8th sync"),
        ):
            for number, curve in enumerate(curves[task, disturbed]):
                axis.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.6, linewidth=1, label="" if number else text)
        axis.set(title=task, xlabel="sync", ylabel="loss of the global weights", yscale="log")
        axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
