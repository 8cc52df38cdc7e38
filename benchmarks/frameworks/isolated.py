"""What groups in processes of their own cost (``framework="isolated:gloo"``), and what becomes of their ends.

    python -m benchmarks isolated                                  # everything
    python -m benchmarks isolated --only average deaths            # some of: average deaths children rebuilds
    python -m benchmarks isolated --only average --sizes 4KB --small-rounds 2000

average    2 workers, beside in-process Gloo, pair by pair (see ``pairs``).
deaths     1 of 4 workers is SIGKILLed, 1 M parameters: until the others' next average, in turns with in-process Gloo; also with
           a rehearsed accelerator that takes 2 s to start.
children   the process that has the group of 1 of 4 workers is SIGKILLed, then SIGSTOPped: until the next average of all four.
rebuilds   of groups: does anything grow (see ``rebuilds``)?
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import time
from typing import Any

import psutil

from benchmarks.failures.faults import Loss, all_after, crew, newest_epoch, pause, refill, strike
from benchmarks.frameworks.pairs import SIZES, paired
from benchmarks.frameworks.rebuilds import rebuilt
from benchmarks.report import Report, chosen, parser, spread
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster
from tests.harness.verdict import Verdict

PLAIN, ISOLATED, REHEARSAL = "gloo", "isolated:gloo", "rehearsal"
SLOWER = 1.5
"""A death may take so many times as long as with in-process Gloo."""
WORST = 0.3
KILLED, STOPPED = 0.08, 1.5
PARTS = ("average", "deaths", "children", "rebuilds")
CHILDREN = ("ftlib-group", "ftlib-accel")
"""What the processes are called that have a group, or a communicator."""
BLOCK = 5
"""Deaths before it is the other framework's turn."""
START = 2.0
"""Seconds that a rehearsed accelerator takes to start."""
REHEARSED = 3.0
"""Seconds between deaths with it: by then it is on again."""
READY = 1.0
"""Seconds until each worker has a spare process again."""


def average(args: argparse.Namespace, report: Report) -> None:
    """Rows for all sizes."""
    paired(report, ISOLATED, args.sizes, args.rounds, args.small_rounds, chosen(args.agent))


# --- deaths and children ---------------------------------------------------------------------------------------------


def task(args: argparse.Namespace, framework: str) -> dict[str, Any]:
    """What a worker of ours does: nothing but averages."""
    settings = chosen(args.agent, framework=framework)
    started = {VARIABLE: f"start_seconds={START:g}"} if framework == REHEARSAL else {}
    return {"sizes": [args.elements], "fill": False, "digest": False, "settings": settings, "environment": started}


def deaths(args: argparse.Namespace, report: Report) -> None:
    """Rows for a death, with each framework."""
    times: dict[str, list[float]] = {name: [] for name in (PLAIN, *args.against)}
    chance = random.Random(args.seed)
    for number in range(-(-args.repetitions // BLOCK)):
        for name in sorted(times, reverse=bool(number % 2)):
            with crew("isolated", args.workers, **task(args, name)) as cluster:
                for _ in range(min(BLOCK, args.repetitions - BLOCK * number)):
                    time.sleep(REHEARSED if name == REHEARSAL else READY)  # until spare or accelerator is ready again
                    times[name].append(strike(cluster, signal.SIGKILL, chance).seconds)
                    report.say(f"{name}: {times[name][-1] * 1e3:.0f} ms")
                    refill(cluster, args.workers)
    plain = times.pop(PLAIN)
    report.row(f"1 of {args.workers} killed, to the others' next average, {len(plain)} times: {PLAIN}", spread(plain))
    for name, took in times.items():
        share = statistics.median(took) / statistics.median(plain)
        bar = f"<= {SLOWER:g}x ({share:.2f}x), worst {WORST * 1e3:g} ms"
        report.row(f"... {name}", spread(took), bar=bar, good=share <= SLOWER and max(took) <= WORST)


def child_in_use(pid: int) -> int:
    """The process that has the group, or the communicator, of worker ``pid``: the one that is connected to others'."""
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name() in CHILDREN and any(each.status == "ESTABLISHED" for each in process.net_connections("tcp")):
                return process.pid
    return 0


def children(args: argparse.Namespace, report: Report) -> None:
    """Rows for the ends of a worker's own child."""
    chance = random.Random(args.seed)
    with crew("isolated", args.workers, **task(args, ISOLATED)) as cluster:
        for number, limit in ((signal.SIGKILL, KILLED), (signal.SIGSTOP, STOPPED)):
            times = []
            for _ in range(args.repetitions):
                time.sleep(0.4 + chance.random() * 0.2)  # past what the last one left behind, at any moment of a call
                times.append(lose_child(cluster, number, chance).seconds)
                report.say(f"{number.name}: {times[-1] * 1e3:.0f} ms")
                assert len(cluster.alive()) == args.workers
            report.bar(f"own child {number.name}, to the next average of all, {len(times)} times", times, limit)
        verdict = Verdict()
        verdict.check(cluster.workers)
        report.verdict(verdict)


def lose_child(cluster: Cluster, number: int, chance: random.Random) -> Loss:
    """A signal for the child of one of them, and how long all of them took to average again."""
    workers = cluster.alive()
    victim = chance.choice(workers)
    child = cluster.until("it has a group", lambda: child_in_use(victim.pid))
    epoch, fault = newest_epoch(cluster.alive()), time.monotonic()
    os.kill(child, number)
    cluster.until("all average again", lambda: all_after(workers, fault, epoch))
    return Loss(victim, workers, epoch, fault, pause(workers, fault, epoch))


def rebuilds(args: argparse.Namespace, report: Report) -> None:
    """Rows for what might grow."""
    rebuilt(report, ISOLATED, args.rebuilds)


def main() -> int:
    options = parser(
        __doc__, workers=4, elements=1_000_000, repetitions=20, rounds=40, small_rounds=1000, rebuilds=1000, seed=1
    )
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    options.add_argument("--against", nargs="+", choices=(ISOLATED, REHEARSAL), default=[ISOLATED, REHEARSAL], help="in deaths")
    args = options.parse_args()
    seconds = {
        "average": 30.0,
        "deaths": 5.0 * args.repetitions,
        "children": 3.0 * args.repetitions,
        "rebuilds": 0.1 * args.rebuilds,
    }
    report = Report("Groups in processes of their own", sum(seconds[part] for part in args.only))
    for part in args.only:
        {"average": average, "deaths": deaths, "children": children, "rebuilds": rebuilds}[part](args, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
