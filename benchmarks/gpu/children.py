"""Ends of the process that has a worker's communicator, while the kernels spin: until all the same members average again."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from itertools import pairwise
from typing import Any

from benchmarks.failures.faults import all_after, come_up, newest_epoch, pause
from benchmarks.frameworks.isolated import child_in_use
from benchmarks.gpu.losses import await_accelerators
from benchmarks.gpu.stand import Bench
from ftlib import FTLib
from ftlib.frameworks.accelerators import backoff
from tests.harness.cluster import Cluster
from tests.harness.holding import Holding, held
from tests.harness.verdict import Verdict
from tests.harness.worker import Lines

LIMITS = {signal.SIGKILL: 0.25, signal.SIGSTOP: 1.5}
"""Seconds beyond a call without a fault."""
ROWS = {
    f"isolated:nccl: own child {number.name} while kernels spin": f"<= {limit * 1e3:g} ms" for number, limit in LIMITS.items()
}
REPETITIONS = 6
READY = 1.0
"""Seconds until each worker has a spare process again."""


class Forgiving(Holding):
    """Every failure is the first one: the pauses after a row of them are not measured here."""

    def __init__(self, ft: FTLib, lines: Lines, directory: str, framework: str) -> None:
        super().__init__(ft, lines, directory, framework)
        backoff.LONG = 0.0


def measure(bench: Bench) -> None:
    """Rows."""
    args, stand, report = bench.args, bench.stand, bench.report
    chance = random.Random(args.seed)
    habit = ["benchmarks.gpu.children:Forgiving", str(bench.directory), stand.isolated]
    task: dict[str, Any] = {"sizes": [args.elements], "device": stand.device, "habit": habit}
    with Cluster(bench.directory, bench.nursery, **task, settings={"framework": stand.isolated}) as cluster:
        cluster.found(args.workers)
        come_up(cluster, args.workers)
        until = [time.monotonic() + bench.left * share for share in (0.5, 1.0)]
        for (number, limit), end in zip(LIMITS.items(), until, strict=True):
            times: list[float] = []
            usual = 0.0
            while len(times) < REPETITIONS and not (times and time.monotonic() > end):
                _on_again(cluster)
                time.sleep(READY)  # nothing says so
                usual = _usual(cluster)
                times.append(_lose_child(cluster, number, chance) - usual)
                report.say(f"{number.name}: {times[-1] * 1e3:.0f} ms")
            what = (
                f"{stand.isolated}: own child {number.name} while kernels spin, {len(times)} times: to the next average of all"
            )
            text = f"beyond a call without a fault ({usual * 1e3:.1f} ms)"
            good = statistics.median(times) <= limit if stand.real else None
            found = f"{statistics.median(times) * 1e3:.0f} ms [{min(times) * 1e3:.0f} - {max(times) * 1e3:.0f}]"
            report.row(f"{what}, {text}", found, bar=f"<= {limit * 1e3:g} ms", good=good)
        assert len(cluster.alive()) == args.workers
        verdict = Verdict()
        verdict.check(cluster.workers)
        report.verdict(verdict)


def _on_again(cluster: Cluster) -> None:
    """Wait until calls go by the accelerator."""
    workers = cluster.alive()

    def all_are() -> bool:
        lines = [worker.calls[-2:] for worker in workers]
        return all(len(two) == 2 and two[1]["accelerated"] > two[0]["accelerated"] for two in lines)

    await_accelerators(cluster, all_are)


def _usual(cluster: Cluster) -> float:
    """Seconds between two calls of a worker."""
    ends = [line["end"] for line in cluster.alive()[0].calls[-50:]]
    return statistics.median(after - before for before, after in pairwise(ends))


def _lose_child(cluster: Cluster, number: int, chance: random.Random) -> float:
    """A signal for the child of one of them, while another one holds its launch back; how long all stood still."""
    workers = cluster.alive()
    victim, holder = chance.sample(workers, 2)
    child = cluster.until("it has a group", lambda: child_in_use(victim.pid))
    with held(cluster, holder):
        epoch, fault = newest_epoch(cluster.alive()), time.monotonic()
        os.kill(child, number)
    cluster.until("all average again", lambda: all_after(workers, fault, epoch))
    return pause(workers, fault, epoch)
