"""Time from a fault to the next finished average, with real processes and default settings, and where that time goes.

    python -m benchmarks.recovery                      # SIGKILL of a junior or middle worker, and of the most senior
    python -m benchmarks.recovery --fault stop         # SIGSTOP without a supervisor; under ftlib run: benchmarks.fencing

Workers average 1 M parameters in a tight loop without compute. Time from fault: CLOCK_MONOTONIC from ``kill()`` to the return
of the first average in an epoch without the victim, the maximum over the survivors; an adopted average (its operations ran
before the fault) does not count. Between repetitions the cluster is brought back to size by a joiner.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.processes.cluster import Cluster, Worker, load
from tests.processes.launched import LaunchedRun

# name, label of the mark at the survivor at which it ends; each counts from the kill
PHASES = (
    "error",
    "proof",
    "propose",
    "accept",
    "frozen",
    "report",
    "chosen",
    "install",
    "build",
    "device",
    "ready",
    "activate",
    "activated",
    "attempt",
    "finish",
)


def after(worker: Worker, fault: float, epoch: int) -> dict[str, object] | None:
    """The line of the first average in an epoch above ``epoch``."""
    previous = None
    for line in reversed(worker.calls):
        if line["epoch"] <= epoch or line["end"] < fault:
            break
        previous = line if not _adopted(worker, line) else previous
    return previous


def _adopted(worker: Worker, line: dict[str, object]) -> bool:
    index = worker.calls.index(line)
    return index > 0 and worker.calls[index - 1]["adopted"] != line["adopted"]


def strike(cluster: Cluster, which: str, number: int, chance: random.Random) -> tuple[float, dict[str, list[float]]]:
    """One fault; seconds until all survivors have averaged without the victim, and until they passed each phase."""
    workers = sorted(cluster.alive(), key=lambda worker: worker.last["rank"])
    victim = workers[0] if which == "senior" else chance.choice(workers[1:])
    survivors = [worker for worker in workers if worker is not victim]
    time.sleep(0.3 + chance.random() * 0.1)
    cluster.read()
    epoch = max(worker.last["epoch"] for worker in workers)
    fault = victim.signal(number)
    if number == signal.SIGSTOP:
        victim.killed = fault
    cluster.until("the survivors average without the victim", lambda: all(after(w, fault, epoch) for w in survivors))
    time.sleep(0.05)
    cluster.read()
    total, phases = 0.0, defaultdict(list)
    for worker in survivors:
        line = after(worker, fault, epoch)
        assert line is not None
        total = max(total, line["end"] - fault)  # type: ignore[operator]
        passed: dict[str, float] = {}
        for each in worker.calls:
            for label, t in each.get("marks", ()):
                if fault < t <= line["end"]:
                    passed.setdefault(label, t - fault)
        for label, t in passed.items():
            phases[label].append(t)
        phases["average"].append(line["end"] - fault)  # type: ignore[operator]
    if number == signal.SIGSTOP:
        victim.signal(signal.SIGCONT)
        cluster.until("the stopped worker ends", lambda: victim.code is not None)
        beyond = [line for line in victim.calls if line["t"] > fault + 0.05 and line["epoch"] <= epoch]
        print(f"  the stopped worker ended with {victim.code}, {len(beyond)} lines after it")
    return total, phases


def _cluster(directory: Path, workers: int, *, launched: bool, **task: Any) -> Cluster:
    task |= {"fill": False, "digest": False}
    if launched:
        return LaunchedRun(directory, workers, restarts=1_000, **task)
    cluster = Cluster(directory, **task)
    cluster.found(workers)
    return cluster


def spread(values: list[float]) -> str:
    ms = sorted(value * 1e3 for value in values)
    return f"{statistics.median(ms):7.1f}  [{ms[0]:.1f} - {ms[-1]:.1f}]"


def measure(
    which: str, number: int, workers: int, repetitions: int, elements: int, seed: int, traced: bool, launched: bool
) -> tuple[list[float], str]:
    """All repetitions of one kind."""
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="ftlib-recovery-"))
    totals: list[float] = []
    firsts: dict[str, list[float]] = defaultdict(list)
    lasts: dict[str, list[float]] = defaultdict(list)
    before = load()
    with _cluster(directory, workers, launched=launched, sizes=[elements], trace=traced) as cluster:
        cluster.training(workers, 60.0)
        for repetition in range(repetitions):
            total, phases = strike(cluster, which, number, chance)
            totals.append(total)
            for label, values in phases.items():
                firsts[label].append(min(values))
                lasts[label].append(max(values))
            if sys.stderr.isatty():
                print(f"\r{which} {repetition + 1}/{repetitions}: {total * 1e3:.1f} ms ", end="", file=sys.stderr, flush=True)
            if not launched:
                cluster.join()
            cluster.training(workers, 60.0)
        stopped = {worker.task.name for worker in cluster.workers if number == signal.SIGSTOP and worker.killed}
        for fault in cluster.faults():
            if fault.partition(":")[0] not in stopped:  # those have been told that they are out
                print(f"  FAULT {fault}")
        if os.environ.get("KEEP"):
            print(f"logs in {directory}")
    if not os.environ.get("KEEP"):
        shutil.rmtree(directory)
    print(
        f"{signal.Signals(number).name} of the {which} of {workers}, {repetitions} times, {elements} parameters; "
        f"{before}, then {load()}"
    )
    print(f"  total, ms: median {spread(totals)}")
    if traced:
        print("  since the fault, ms             first survivor           last survivor")
        for label in (*PHASES, "average"):
            if label in firsts:
                print(f"    {label:<12} ({len(firsts[label]):3}) {spread(firsts[label]):>26}  {spread(lasts[label]):>26}")
    return totals, which


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--which", choices=["junior", "senior", "both"], default="both")
    parser.add_argument("--fault", choices=["kill", "stop"], default="kill")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-trace", action="store_true")
    parser.add_argument("--launched", action="store_true", help="under ftlib run: processes that were not forked from one")
    args = parser.parse_args()
    number = signal.SIGKILL if args.fault == "kill" else signal.SIGSTOP
    failed = False
    for which in ["junior", "senior"] if args.which == "both" else [args.which]:
        totals, _ = measure(
            which, number, args.workers, args.repetitions, args.elements, args.seed, not args.no_trace, args.launched
        )
        bar, worst = (3.0, 3.0) if args.fault == "stop" else (0.060, 0.250) if which == "junior" else (0.100, 1.0)
        good = statistics.median(totals) <= bar and max(totals) <= worst
        print(f"  bar: median {bar * 1e3:.0f} ms, worst {worst * 1e3:.0f} ms: {'met' if good else 'MISSED'}")
        failed |= not good
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
