"""A training thread that hangs while its agent lives, with ``stall_timeout=1``; and 100 M parameters at the same settings.

    python -m benchmarks.stall                        # about 4 minutes
    python -m benchmarks.stall --repeats 2 --big 2 --steps 3

One of 4 workers (1 M parameters) stops for ever before a call, as in ``Event().wait()``; its other threads go on. Time from
there to the end of the survivors' first average without it, the latest of them; bar 1.6 s, each. No step may be lost: the
survivors' step counters have no gap, also over the interrupted one, and their parameters are alike after every step. The hung
worker is killed and replaced each time. Then workers started anew train a model of 100 M parameters: everybody must stay.
"""

from __future__ import annotations

import random
import signal
import statistics
import sys
from typing import Any

from benchmarks.faults import all_after, crew, newest_epoch, pause, put_away, refill
from benchmarks.job import Job
from benchmarks.report import Report, chosen, parser
from tests.processes.cluster import Cluster, Stuck
from tests.processes.verdict import Verdict

BAR = 1.6
LIMIT = 15.0
"""Seconds after which a hang counts as not noticed."""
GIVEN_UP = 2
"""After so many of those there is no point in more."""


def hang(cluster: Cluster, chance: random.Random) -> float:
    """One hang; seconds until the survivors have averaged, infinite where they have not within the limit."""
    size = len(cluster.alive())
    victim = chance.choice(cluster.alive())
    survivors = [worker for worker in cluster.alive() if worker is not victim]
    epoch = newest_epoch(cluster.alive())
    victim.signal(signal.SIGUSR2)

    def stopped() -> float:
        return next((float(event["t"]) for event in victim.events if event.get("event") == "hang"), 0.0)

    at = cluster.until("the victim hangs", stopped)
    victim.killed = at
    try:
        cluster.until("the survivors average without it", lambda: all_after(survivors, at, epoch), LIMIT)
        seconds = pause(survivors, at, epoch)
    except Stuck as error:
        print(str(error).splitlines()[0], flush=True)
        seconds = float("inf")
    put_away(cluster, victim)
    refill(cluster, size)
    return seconds


def hangs(repeats: int, elements: int, settings: dict[str, Any], seed: int, report: Report) -> None:
    """The first part."""
    chance, verdict, times = random.Random(seed), Verdict(), list[float]()
    with crew("stall", 4, sizes=[elements], habit=["benchmarks.habits:Hang"], settings=settings) as cluster:
        while len(times) < repeats and times.count(float("inf")) < GIVEN_UP:
            report.say(f"hang {len(times) + 1} of {repeats}")
            times.append(hang(cluster, chance))
        verdict.check(cluster.workers)
        for fault in cluster.faults():
            if not any(worker.killed and fault.startswith(f"{worker.task.name}:") for worker in cluster.workers):
                print(f"  FAULT {fault}")
    report.bar("hang to the survivors' next average", times, BAR, worst=BAR)
    report.verdict(verdict)


def big(workers: int, steps: int, settings: dict[str, Any], report: Report) -> None:
    """The second part."""
    report.say(f"100 M parameters, {workers} workers")
    what = f"100 M parameters, {workers} workers"
    try:
        with Job(["-m", "benchmarks.fresh", "big", "--steps", str(steps)], workers, settings) as job:
            job.ended(120.0 + 8.0 * steps)
            lines = job.all_lines()
    except Stuck as error:
        print(error, flush=True)
        report.row(what, str(error).splitlines()[-1][:160], bar="all stay", good=False)
        return
    trained = [line for line in lines if "step" in line]
    hashes = {line["hash"] for line in lines if line.get("event") == "done"}
    done = [line for line in trained if line["status"] == "SUCCESS" and line["size"] == workers and line["epoch"] == 1]
    average = statistics.median(line["averaging"] for line in trained)
    longest = max(line["averaging"] + line["computing"] for line in trained)
    text = f"{len(done) // workers} of {steps} steps with all; average {average:.2f} s, longest step {longest:.2f} s"
    report.row(what, text, bar="all stay, alike", good=len(done) == workers * steps and len(hashes) == 1)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=10, help="hangs")
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--stall-timeout", type=float, default=1.0)
    options.add_argument("--big", type=int, nargs="*", default=[2, 4], help="numbers of workers that train 100 M parameters")
    options.add_argument("--steps", type=int, default=20, help="of 100 M parameters")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    settings = chosen(args.agent, stall_timeout=args.stall_timeout)
    expected = 5 + 4 * args.repeats + sum(10 + 0.7 * workers * args.steps for workers in args.big)
    report = Report(f"a training thread that hangs, stall_timeout={args.stall_timeout:g}", expected)
    if args.repeats:
        hangs(args.repeats, args.elements, settings, args.seed, report)
    for workers in args.big:
        big(workers, args.steps, settings, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
