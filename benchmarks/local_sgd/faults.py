"""Deaths at random moments, many of them inside syncs: nothing is lost, nothing differs, and nobody stands still for long."""

from __future__ import annotations

import itertools
import random
import statistics
import time
from argparse import Namespace
from typing import Any

from benchmarks.failures.faults import crew
from benchmarks.report import Report
from tests.harness.cluster import Cluster, Worker
from tests.harness.verdict import Verdict

WORKERS = 4
WAYS: dict[str, dict[str, Any]] = {
    "whole": {"sync_every": 8},
    "fragments": {"sync_every": 16, "fragments": 4},
    "delay": {"sync_every": 8, "delay": 4},
    "both": {"sync_every": 32, "fragments": 4, "delay": 4},
}
"""One fragment or four, without and with a delay."""
SIZES = [30_000, 200_000, 1_000, 90_000]
STEP = 0.004
"""Seconds of an inner step."""
MOMENTS = ("enter", "operation:before", "operation:after", "finish:before", "finish:after", "deliver:before")
IN_SYNC = 0.4
BAR = 0.080
LIMIT = 120.0
ROUNDS = 10


def faults(args: Namespace, report: Report) -> None:
    """The chosen ways in turns, each with its share of the kills."""
    chance, verdict = random.Random(args.seed), Verdict()
    every: list[float] = []
    inside, syncs, inner, errors = 0, list[str](), list[str](), list[str]()
    for name in args.ways:
        way, pauses = WAYS[name], list[float]()
        left = args.kills // len(args.ways)
        task = {"sizes": SIZES, "pause": STEP, "given": way, "settings": {"agent": "thread"}}
        job = Verdict()
        with crew("seldom", WORKERS, program="tests.train.local_sgd.learner:learn", **task) as cluster:
            _train(cluster)
            for number in range(left):
                report.say(f"{name}: kill {number + 1} of {left}")
                inside += _fault(cluster, chance, pauses)
                job.check(cluster.workers)
            errors += list(cluster.faults())
            verdict.violations += job.violations
            verdict.steps += job.steps
            syncs += [text for worker in cluster.workers for text in _lost(worker, way, syncs=True)]
            inner += [text for worker in cluster.workers for text in _lost(worker, way, syncs=False)]
        if pauses:
            report.row(f"faults: {name}, pause", f"{1e3 * statistics.median(pauses):.1f} ms [- {1e3 * max(pauses):.1f}]")
        every += pauses
    report.verdict(verdict, "faults: ")
    for text in (*syncs[:5], *inner[:5], *errors[:5]):
        print(f"VIOLATION {text}", flush=True)
    report.row("faults: syncs lost", str(len(syncs)), bar="0", good=not syncs)
    report.row("faults: inner steps of survivors lost, errors", str(len(inner) + len(errors)), bar="0",
               good=not inner and not errors)  # fmt: skip
    report.row("faults: kills, of these at a boundary of a sync", f"{len(every)}, {inside}")
    report.bar("faults: pause", every, BAR, unit="ms")


def _fault(cluster: Cluster, chance: random.Random, pauses: list[float]) -> bool:
    """One death; then they are four again. Whether it was at a boundary of a sync."""
    survivors = cluster.alive()
    inside = chance.random() < IN_SYNC
    if inside:  # a fifth worker comes, and dies in the third sync or so that it is in
        moment = f"{chance.choice(MOMENTS)}@{chance.randint(8, 14)}"
        victim = cluster.join(kill_at=moment)
    else:
        time.sleep(chance.uniform(0.1, 0.6))
        victim = chance.choice(survivors)
        survivors = [worker for worker in survivors if worker is not victim]
        victim.kill()
    cluster.until("it has died", lambda: victim.code is not None, LIMIT)
    victim.killed = victim.killed or victim.ended
    before = {worker.pid: len(worker.calls) for worker in survivors}
    cluster.until("the others go on", lambda: all(len(worker.calls) >= before[worker.pid] + 2 for worker in survivors), LIMIT)
    pauses.append(max(_longer(worker, victim.ended) for worker in survivors))
    if not inside:
        cluster.join()
    cluster.training(WORKERS, LIMIT)
    _train(cluster)
    return inside


def _train(cluster: Cluster) -> None:
    """Until all that live have made so many rounds more."""
    target = {worker.pid: len(worker.calls) + ROUNDS for worker in cluster.alive()}
    cluster.until("they train", lambda: all(len(w.calls) >= target[w.pid] for w in cluster.alive()), LIMIT)


def _longer(worker: Worker, death: float) -> float:
    """By how much the longest of this worker's two rounds around the death exceeded the median of those before."""
    times = [line["t"] for line in worker.calls]
    rounds = list(itertools.pairwise(times))
    usual = statistics.median(end - begin for begin, end in [each for each in rounds if each[1] < death][-ROUNDS:])
    around = [end - begin for begin, end in rounds if end >= death][:2]
    return max(0.0, max(around) - usual)


def _lost(worker: Worker, way: dict[str, Any], *, syncs: bool) -> list[str]:
    """Rounds of other lengths than the schedule's. Longer ones: a sync was thrown away. Shorter ones: inner steps were."""
    period = way["sync_every"] // way.get("fragments", 1)
    inner = [line["inner"] for line in worker.calls]
    rounds = itertools.pairwise(inner)
    return [f"{worker.task.name}: inner steps {a} to {b}" for a, b in rounds if (b - a > period if syncs else b - a < period)]
