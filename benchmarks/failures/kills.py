"""Kills without end: at random moments, down to one worker and back, and beside joins that fill the gaps."""

from __future__ import annotations

import collections
import dataclasses
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.failures.faults import crew, refill
from benchmarks.job import Footprint, footprint
from benchmarks.report import Report, chosen, parser
from tests.harness.cluster import Cluster, load
from tests.harness.verdict import Verdict
from tests.processes.jobs.episode import Episode, shrink_and_grow

EPISODE = 40
"""Kills per episode."""


@dataclass
class Tally:
    """What came of all episodes."""

    kills: int = 0
    steps: int = 0
    joins: int = 0
    bad: int = 0
    """Episodes in which something was violated."""
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    pauses: list[float] = field(default_factory=list)
    """See ``Episode``."""

    @property
    def pause_text(self) -> str:
        """For a table."""
        if not self.pauses:
            return "none"
        pauses = sorted(self.pauses)
        median, most = pauses[len(pauses) // 2], pauses[int(len(pauses) * 0.99)]
        return f"median {median * 1e3:.0f} ms, 99 % {most * 1e3:.0f} ms, worst {pauses[-1] * 1e3:.0f} ms"


def rampage(kills: int, seed: int, directory: Path | None = None, settings: Mapping[str, Any] | None = None) -> Tally:
    """Episodes until there were so many kills. ``settings``: of all workers. Logs of bad episodes stay in ``directory``."""
    tally, began = Tally(), time.monotonic()
    number = 0
    while tally.kills < kills:
        own = seed * 1_000 + number
        number += 1
        place = Path(tempfile.mkdtemp(prefix=f"kills-{own}-", dir=directory))
        episode = Episode(place, own, min(EPISODE, kills - tally.kills), settings)
        try:
            episode.run()
        except AssertionError as error:
            tally.bad += 1
            print(f"\nVIOLATION in episode {number} (seed {own}: {episode.text}); logs in {place}:\n  {error}", flush=True)
        else:
            shutil.rmtree(place)
        tally.kills += max(1, episode.kills)
        tally.steps += episode.verdict.steps
        tally.joins += episode.joins
        tally.kinds += episode.kinds
        tally.pauses += episode.pauses
        print(
            f"{tally.kills:5} kills, {tally.steps} steps, {tally.joins} joins, {tally.bad} bad episodes, "
            f"{time.monotonic() - began:.0f} s, {load()}; last: {episode.text}",
            flush=True,
        )
    return tally


def kills() -> int:
    """A thousand kills at random moments: no step lost, none divergent, nobody stuck, no survivor that errs.

        python -m benchmarks kills --kills 1000 --seed 1

    Episodes of 2 to 5 workers with 1 to 3 buckets in flight train without end. Workers get SIGKILL at random moments: most
    while training (before, inside, between and after operations), some a moment after another one (inside the view change),
    some two at once, some right after they were started (inside their own admission), now and then the most senior. New
    workers join in their place. Each event has 20 s. Exit code 1 if anything was violated; the logs of that episode are kept.
    """
    options = parser(kills.__doc__, agent=False, kills=1_000)
    options.add_argument("--seed", type=int, default=random.randrange(10**6))
    options.add_argument("--directory", type=Path, default=None, help="where to keep the logs of a failing episode")
    args = options.parse_args()
    print(f"seed {args.seed}, {load()}")
    tally = rampage(args.kills, args.seed, args.directory)
    if tally.pauses:
        print(f"pause of all survivors after an event: {tally.pause_text}")
    verdict = f"{tally.bad} EPISODES FAILED" if tally.bad else "no step lost, none divergent, nobody stuck"
    print(f"{tally.kills} kills {dict(tally.kinds)}; {verdict}")
    return int(tally.bad > 0)


def shrink() -> int:
    """4 -> 1 by successive kills and back to 4 by joins, training all the while, again and again.

        python -m benchmarks shrink --rounds 20

    Victims are drawn at random, the most senior among them; no kill waits for more than the survivors' next average. Bar: every
    round works, no step is lost and all results are alike.
    """
    options = parser(shrink.__doc__, agent=False, rounds=20, workers=4, seed=1)
    args = options.parse_args()
    chance = random.Random(args.seed)
    verdict = Verdict()
    began = time.monotonic()
    print(f"{args.workers} -> 1 -> {args.workers}, {args.rounds} rounds, seed {args.seed}; {load()}")
    with crew("shrink", args.workers, sizes=[20_000, 300]) as cluster:
        for number in range(1, args.rounds + 1):
            shrink_and_grow(cluster, args.workers, chance)
            verdict.check(cluster.workers)
            faults = [*verdict.violations, *cluster.faults()]
            assert not faults, "\n  ".join([f"round {number}", *faults[:10]])
            print(f"\r{number} of {args.rounds}, {verdict.steps} steps, {time.monotonic() - began:.0f} s", end="", flush=True)
    print(f"\n{args.rounds} of {args.rounds} worked, {verdict.steps} steps, none lost, all alike; {load()}")
    return 0


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


def churn() -> int:
    """Kills and joins without end: does a worker that survives them all grow?

        python -m benchmarks churn                        # 24 a minute for 10 minutes
        python -m benchmarks churn --seconds 50 --warm-up 15

    4 workers average 100,000 parameters, a few dozen times a second. Every 2.5 s one of three is killed and another one
    joins; the fourth, the most senior, is measured before each kill, when all four train together: it and its agent, where
    that is a process. First and last are medians of five measurements. Bars, from the end of the first minute on: as many
    threads, descriptors and ports as at first; resident memory grows by less than 1 MB a minute, by the slope of the line
    through all measurements (each new group brings threads and buffers of its own, which the allocator gives back as it sees
    fit; less than 20 KB a view change cannot be told from that).
    """
    options = parser(churn.__doc__, seconds=600.0, workers=4, elements=100_000, seed=1)
    options.add_argument("--per-minute", type=float, default=24.0, help="kills and joins")
    options.add_argument("--warm-up", type=float, default=60.0, help="seconds before growth counts")
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
