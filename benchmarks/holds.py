"""Where the agent should run: a thread of the worker against a process of its own, on a machine that is not idle.

    python -m benchmarks.holds                        # both, side by side; about 6 minutes
    python -m benchmarks.holds --agents thread --repeats 1 --seconds 3 --kills 2

One column each, by turns:

* a C extension that keeps the GIL of one of 4 workers for 3 s, asleep and spinning: was it excluded, how long was the longest
  pause of the others (they wait for it in any case unless it is excluded);
* both cores loaded by busy loops: the largest delay of an agent's clock tick, from ``/status``;
* a worker that crawls, as one that swaps: SIGSTOP for 100 ms, SIGCONT for 20 ms, again and again. (Memory pressure itself
  cannot be made without swap space; the signal stops all threads of the training process, as a page fault storm would. An
  agent's process is left alone: it is small, and what it needs stays resident.);
* SIGKILL of a junior worker to the survivors' next average, 1 M parameters; and an average of 4 KB, whose cost is control;
* how long ``FTLib.init`` takes in a worker started anew that founds alone, and the memory of worker and agent.

Only what is to be compared; no bars.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import time
from itertools import pairwise
from typing import Any

import psutil

from benchmarks.faults import Watch, crew
from benchmarks.job import Job
from benchmarks.machine import busy_loops
from benchmarks.recovery import alternate
from benchmarks.report import AGENTS, Report, chosen, parser, spread
from ftlib.cli.status import fetch_status
from ftlib.errors import FTLibError
from tests.processes.cluster import Cluster, Worker


def delay(worker: Worker) -> float | None:
    """The largest tick delay that the worker's agent tells, None where it tells none."""
    try:
        return _found(fetch_status(worker.address), "tick_delay_max")
    except FTLibError:
        return None


def _found(value: Any, name: str) -> float | None:
    if isinstance(value, dict):
        if name in value:
            return float(value[name])
        value = list(value.values())
    if isinstance(value, list):
        return next((found for each in value if (found := _found(each, name)) is not None), None)
    return None


def delays(cluster: Cluster) -> str:
    """The largest of all workers."""
    os.environ["FTLIB_SECRET"] = cluster.secret  # as a user would give it to ``ftlib status``
    found = [each for worker in cluster.alive() if (each := delay(worker)) is not None]
    return f"{max(found) * 1e3:.0f} ms" if found else "not told"


def hold(settings: dict[str, Any], args: argparse.Namespace, chance: random.Random, report: Report) -> list[str]:
    """Holds of the GIL, asleep and spinning in turns."""
    habit = ["benchmarks.habits:HoldGil", args.hold]
    with crew("holds", 4, sizes=[args.elements], habit=habit, settings=settings) as cluster:
        watch, excluded, pauses = Watch(cluster), 0, []
        for _ in range(2 * args.repeats):
            victim = chance.choice([worker for worker in cluster.alive() if worker.calls])
            others = [worker for worker in cluster.alive() if worker is not victim]
            before, began = watch.exclusions, time.monotonic()
            watch.longest = 0.0
            victim.signal(signal.SIGUSR2)
            while time.monotonic() < began + args.hold + 1.0:
                watch.look()
                time.sleep(0.1)  # between two looks
            excluded += watch.exclusions > before
            pauses.append(max(_longest(worker, began) for worker in others))
            report.say(f"hold: {excluded} excluded")
        return [f"{excluded} of {2 * args.repeats}", spread(pauses, unit="s"), delays(cluster)]


def _longest(worker: Worker, since: float) -> float:
    ends = [line["end"] for line in worker.calls if line["end"] > since - 1.0]
    return max((late - early for early, late in pairwise(ends)), default=float("inf"))


def loaded(settings: dict[str, Any], args: argparse.Namespace, report: Report) -> list[str]:
    """Busy loops beside training."""
    with crew("loaded", 4, sizes=[args.elements], settings=settings) as cluster:
        rest = delays(cluster)
        with busy_loops(args.loops):
            watch = Watch(cluster)
            watch.train(args.seconds, report)
            return [f"{rest}; {delays(cluster)}", watch.text, watch.step_text]


def crawling(settings: dict[str, Any], args: argparse.Namespace, report: Report) -> list[str]:
    """One worker that gets little time."""
    with crew("crawling", 4, sizes=[args.elements], settings=settings) as cluster:
        watch, victim = Watch(cluster, refilling=False), cluster.alive()[-1]
        end = time.monotonic() + args.seconds
        while time.monotonic() < end and victim.code is None:
            victim.signal(signal.SIGSTOP)
            time.sleep(args.stopped)  # it crawls: so long it stands,
            victim.signal(signal.SIGCONT)
            time.sleep(args.running)  # so long it runs
            report.say(f"crawling: {watch.exclusions} excluded")
            watch.look()
        return [watch.text, watch.step_text, delays(cluster)]


def control(settings: dict[str, Any], args: argparse.Namespace) -> list[float]:
    """Seconds of each average of 4 KB."""
    with crew("control", 4, sizes=[1_000], fill=False, digest=False, settings=settings) as cluster:
        start = len(cluster.workers[0].calls)
        time.sleep(args.seconds / 4)  # the time that is measured
        cluster.read()
        ends = [line["end"] for line in cluster.workers[0].calls[start:]]
        return [late - early for early, late in pairwise(ends)]


def started(settings: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of ``FTLib.init``, MB of the worker after it, MB of its agent's process (0: none)."""
    with Job(["-m", "benchmarks.fresh", "rest"], 1, settings) as job:
        job.until("it has started", lambda: bool(job.lines(0)), 60.0)
        line = job.lines(0)[0]
        children = psutil.Process(job.processes[0].pid).children(recursive=True)
        return line["seconds"], line["rss"], sum(child.memory_full_info().uss for child in children) / 1e6


def main() -> int:
    options = parser(__doc__, agent=False)
    options.add_argument("--agents", nargs="+", choices=[*AGENTS, "default"], default=list(AGENTS))
    options.add_argument("--repeats", type=int, default=3, help="holds of each kind")
    options.add_argument("--hold", type=float, default=3.0, help="seconds for which the GIL is held")
    options.add_argument("--seconds", type=float, default=20.0, help="of load, and of crawling")
    options.add_argument("--stopped", type=float, default=0.1, help="seconds that the crawling worker is stopped for")
    options.add_argument("--running", type=float, default=0.02, help="seconds that it runs in between")
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--loops", type=int, default=4)
    options.add_argument("--elements", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    each = 35 + 2 * args.repeats * (args.hold + 3) + 2.5 * args.seconds + 1.3 * args.kills
    report = Report("where the agent runs", each * len(args.agents), args.agents)
    chance = random.Random(args.seed)
    variants = {name: chosen(None if name == "default" else name) for name in args.agents}

    def rows(columns: list[list[str]], *names: str) -> None:
        for name, values in zip(names, zip(*columns, strict=True), strict=True):
            report.row(name, *values)

    rows(
        [hold(settings, args, chance, report) for settings in variants.values()],
        f"GIL held for {args.hold:g} s: excluded",
        "    longest pause of the others",
        "    largest tick delay",
    )
    rows(
        [loaded(settings, args, report) for settings in variants.values()],
        f"{args.loops} busy loops, {args.seconds:g} s: largest tick delay before; then",
        "    excluded",
        "    steps",
    )
    rows(
        [crawling(settings, args, report) for settings in variants.values()],
        "crawling: excluded",
        "    steps",
        "    largest tick delay",
    )
    kills = alternate(variants, 2, max(1, args.kills // 2), chance, elements=args.elements)
    report.row("SIGKILL to the survivors' next average", *(spread(times) for times in kills.values()))
    steps: dict[str, list[float]] = {name: [] for name in variants}
    inits: dict[str, list[tuple[float, float, float]]] = {name: [] for name in variants}
    for _ in range(3):
        for name, settings in variants.items():
            steps[name] += control(settings, args)
            inits[name].append(started(settings))
    report.row("average of 4 KB, 4 workers", *(f"{statistics.median(times) * 1e3:.2f} ms" for times in steps.values()))
    report.row("FTLib.init, founding alone", *(spread([init[0] for init in found]) for found in inits.values()))
    for place, name in ((1, "resident memory of the worker"), (2, "memory of the agent's process alone")):
        report.row(name, *(f"{statistics.median(init[place] for init in found):.0f} MB" for found in inits.values()))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
