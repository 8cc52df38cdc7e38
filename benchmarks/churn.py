"""Kills and joins without end: does a worker that survives them all grow?

    python -m benchmarks.churn                        # 24 a minute for 10 minutes
    python -m benchmarks.churn --seconds 50 --warm-up 15

4 workers average 100,000 parameters, a few dozen times a second. Every 2.5 s one of three is killed and another one joins; the
fourth, the most senior, is measured before each kill, when all four train together: it and its agent, where that is a process.
First and last are medians of five measurements. Bars, from the end of the first minute on: as many threads, descriptors and
ports as at first; resident memory grows by less than 1 MB a minute, by the slope of the line through all measurements (each new
group brings threads and buffers of its own, which the allocator gives back as it sees fit; less than 20 KB a view change cannot
be told from that).
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import sys
import time

from benchmarks.faults import crew, refill
from benchmarks.machine import Footprint, footprint
from benchmarks.report import Report, chosen, parser
from tests.processes.cluster import Cluster
from tests.processes.verdict import Verdict

SLOPE = 1.0
"""MB a minute."""
LEAST = 6
"""Measurements that a verdict needs."""


class Survivor:
    """The one that is measured: values over time, in seconds since the start."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = time.monotonic()
        self.times: list[float] = []
        self.found: list[Footprint] = []

    def measure(self) -> None:
        """Now."""
        self.times.append(time.monotonic() - self._began)
        self.found.append(footprint(self._pid))

    def judge(self, warm_up: float, report: Report) -> None:
        """A row for each quantity."""
        kept = [index for index, at in enumerate(self.times) if at >= warm_up]
        if len(kept) < LEAST:
            report.row("measurements after the warm-up", str(len(kept)), "", "", bar=f">= {LEAST}", good=False)
            return
        for item in dataclasses.fields(Footprint):
            values = [float(getattr(self.found[index], item.name)) for index in kept]
            ends = max(2, min(5, len(values) // 3))
            first, last = statistics.median(values[:ends]), statistics.median(values[-ends:])
            slope = 60.0 * statistics.linear_regression([self.times[index] for index in kept], values).slope
            if item.name == "rss":
                name, bar, good = "resident memory, MB", f"< {SLOPE:g} a minute", slope < SLOPE
            else:
                name, bar, good = item.name, "no more than at first", last <= first
            report.row(name, f"{first:.1f}", f"{last:.1f}", f"{slope:+.3f}", bar=bar, good=good)


def cycle(cluster: Cluster, size: int, chance: random.Random) -> None:
    """One kill, one join, all together again."""
    chance.choice(cluster.alive()[1:]).kill()
    cluster.training(size - 1)
    refill(cluster, size)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=600.0)
    options.add_argument("--per-minute", type=float, default=24.0, help="kills and joins")
    options.add_argument("--warm-up", type=float, default=60.0, help="seconds before growth counts")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--elements", type=int, default=100_000)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    title = f"{args.per_minute:g} kills and joins a minute, {args.workers} workers of {args.elements:,} parameters"
    report = Report(title, 10 + args.seconds, ("first", "last", "a minute"))
    chance, verdict, cycles = random.Random(args.seed), Verdict(), 0
    task = {"sizes": [args.elements], "pause": 0.04, "settings": chosen(args.agent)}
    with crew("churn", args.workers, **task) as cluster:
        survivor = Survivor(cluster.workers[0].pid)
        began = time.monotonic()
        while (now := time.monotonic() - began) < args.seconds:
            time.sleep(max(0.0, cycles * 60.0 / args.per_minute - now))  # until the next cycle is due
            survivor.measure()
            cycle(cluster, args.workers, chance)
            cycles += 1
            report.say(f"{now:.0f} of {args.seconds:.0f} s, {cycles} cycles: {survivor.found[-1]}")
        seconds = time.monotonic() - began
        survivor.measure()
        verdict.check(cluster.workers)
        faults = [*verdict.violations, *cluster.faults()]
    survivor.judge(args.warm_up, report)
    rate = 60.0 * cycles / seconds
    least = 0.95 * args.per_minute
    report.row("cycles a minute", f"{rate:.1f}", "", "", bar=f">= {least:.0f}", good=rate >= least)
    report.row("steps lost, results that differ, errors", str(len(faults)), "", "", bar="0", good=not faults)
    for fault in faults[:5]:
        print(fault)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
