"""Whom the detector takes for dead on a machine that is not idle, and how soon it is right."""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import psutil

from benchmarks.failures.faults import Watch, all_after, crew, newest_epoch, pause, put_away, refill, strike
from benchmarks.failures.recovery import alternate
from benchmarks.job import Job, busy_loops
from benchmarks.report import AGENTS, Report, chosen, parser, spread
from ftlib.cli.status import fetch_status
from ftlib.errors import FTLibError
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Stuck
from tests.harness.verdict import Verdict

BARS = {signal.SIGKILL: 0.5, signal.SIGSTOP: 4.0}


def detect(
    cluster: Cluster, number: signal.Signals, repeats: int, chance: random.Random, report: Report, *, whole: bool
) -> list[float]:
    """Seconds of each fault that was noticed; the cluster is whole again after each."""
    size, times = len(cluster.alive()), []
    for repeat in range(repeats):
        report.say(f"{number.name} {repeat + 1} of {repeats}")
        try:
            loss = strike(cluster, number, chance, whole=whole)
        except Stuck as error:
            print(f"{number.name}: {str(error).splitlines()[0]}", flush=True)
            times.append(float("inf"))
            for worker in cluster.workers:
                if worker.killed and worker.code is None:
                    put_away(cluster, worker)
        else:
            times.append(loss.seconds)
            put_away(cluster, loss.victim)
        refill(cluster, size)
    return times


def detected(
    cluster: Cluster, bars: Mapping[signal.Signals, float], repeats: int, chance: random.Random, report: Report, *, whole: bool
) -> None:
    """Rows for faults of these kinds, each within its bar, and for those who are taken for dead beside their victims."""
    watch = Watch(cluster)
    for number, bar in bars.items():
        times = detect(cluster, number, repeats, chance, report, whole=whole)
        report.bar(f"{number.name} to the survivors' next average", times, bar, worst=bar)
    watch.look()
    report.row("others excluded meanwhile", str(len(watch.ended)), bar="0", good=not watch.ended)


def trained(cluster: Cluster, seconds: float, report: Report, **holds: Any) -> None:
    """Rows for training in which nobody may be excluded; ``holds``: see ``Watch.train``."""
    watch = Watch(cluster)
    watch.train(seconds, report, **holds)
    report.row("training, steps", watch.step_text)
    report.row(f"false exclusions in {seconds:.0f} s", watch.text, bar="0", good=not watch.exclusions)


def busy() -> int:
    """Detection on a busy machine: nobody is excluded who lives, and who dies or stops is noticed all the same.

        python -m benchmarks busy                         # 15 minutes, and about 3 more for the detection
        python -m benchmarks busy --seconds 20 --repeats 1

    4 workers average 1 M parameters beside 4 busy loops. About every 10 s one of them, drawn at random, keeps the GIL for
    1.5 s at a random moment of its training loop, in turns asleep and spinning. Excluded: workers that ended though nobody
    ended them, or views with fewer members than before. Then, beside the same loops but without such holds (a survivor that
    holds its GIL is late for the next average whatever was detected), SIGKILL and SIGSTOP of a random worker: time from the
    signal to the end of the first average without the victim, the latest of the survivors. Bars: 0 excluded; 0.5 s and 4 s.
    """
    options = parser(busy.__doc__, workers=4, elements=1_000_000, seed=1)
    options.add_argument("--seconds", type=float, default=900.0, help="of training, for false exclusions")
    options.add_argument("--repeats", type=int, default=10, help="of each fault")
    options.add_argument("--loops", type=int, default=4, help="busy loops beside them")
    options.add_argument("--hold", type=float, default=1.5, help="seconds for which the GIL is held")
    options.add_argument("--every", type=float, default=10.0, help="seconds between holds, on average")
    options.add_argument("--whole", action="store_true", help="SIGSTOP the victim's agent too, where that is a process")
    args = options.parse_args()
    chance = random.Random(args.seed)
    title = f"{args.workers} workers of {args.elements:,} parameters beside {args.loops} busy loops"
    report = Report(title, 15 + args.seconds + args.repeats * 14)
    verdict = Verdict()
    habit = ["benchmarks.programs:HoldGil", args.hold]
    with (
        busy_loops(args.loops),
        crew("busy", args.workers, sizes=[args.elements], habit=habit, settings=chosen(args.agent)) as cluster,
    ):
        trained(cluster, args.seconds, report, holds=args.every, chance=chance)
        held = [event for worker in cluster.workers for event in worker.events if event.get("event") == "held"]
        longest = max((event["t"] - event["began"] for event in held), default=0.0)
        report.row("holds of the GIL", f"{len(held)}; longest {longest:.2f} s")
        detected(cluster, BARS, args.repeats, chance, report, whole=args.whole)
        verdict.check(cluster.workers)
    report.verdict(verdict)
    return report.finish()


TIGHT_BAR = 0.7


def tight() -> int:
    """``exclude_after=0.3``: how soon a stopped worker is out, and whether anybody else ever is.

        python -m benchmarks tight                        # 10 minutes, and one more for the stops
        python -m benchmarks tight --seconds 10 --repeats 2

    4 workers average 1 M parameters in a tight loop and nothing else runs. SIGSTOP of a random worker: time from the signal
    to the end of the first average without it, the latest of the survivors; bar 0.7 s, each. Then training with nobody hurt:
    0 excluded.
    """
    options = parser(tight.__doc__, exclude_after=0.3, workers=4, elements=1_000_000, seed=1)
    options.add_argument("--seconds", type=float, default=600.0, help="of training, for false exclusions")
    options.add_argument("--repeats", type=int, default=10, help="stops")
    options.add_argument("--whole", action="store_true", help="SIGSTOP the victim's agent too, where that is a process")
    args = options.parse_args()
    title = f"exclude_after={args.exclude_after:g}, {args.workers} workers of {args.elements:,} parameters"
    report = Report(title, 10 + args.seconds + 4 * args.repeats)
    verdict = Verdict()
    settings = chosen(args.agent, exclude_after=args.exclude_after)
    with crew("tight", args.workers, sizes=[args.elements], settings=settings) as cluster:
        detected(cluster, {signal.SIGSTOP: TIGHT_BAR}, args.repeats, random.Random(args.seed), report, whole=args.whole)
        trained(cluster, args.seconds, report)
        verdict.check(cluster.workers)
    report.verdict(verdict)
    return report.finish()


STALL_BAR = 1.6
HANG_LIMIT = 15.0
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
        cluster.until("the survivors average without it", lambda: all_after(survivors, at, epoch), HANG_LIMIT)
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
    with crew("stall", 4, sizes=[elements], habit=["benchmarks.programs:Hang"], settings=settings) as cluster:
        while len(times) < repeats and times.count(float("inf")) < GIVEN_UP:
            report.say(f"hang {len(times) + 1} of {repeats}")
            times.append(hang(cluster, chance))
        verdict.check(cluster.workers)
        for fault in cluster.faults():
            if not any(worker.killed and fault.startswith(f"{worker.task.name}:") for worker in cluster.workers):
                print(f"  FAULT {fault}")
    report.bar("hang to the survivors' next average", times, STALL_BAR, worst=STALL_BAR)
    report.verdict(verdict)


def big(workers: int, steps: int, settings: dict[str, Any], report: Report) -> None:
    """The second part."""
    report.say(f"100 M parameters, {workers} workers")
    what = f"100 M parameters, {workers} workers"
    try:
        with Job(["-m", "benchmarks", "big", "--steps", str(steps)], workers, settings) as job:
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


def stall() -> int:
    """A training thread that hangs while its agent lives, with ``stall_timeout=1``; and 100 M parameters at the same settings.

        python -m benchmarks stall                        # about 4 minutes
        python -m benchmarks stall --repeats 2 --big 2 --steps 3

    One of 4 workers (1 M parameters) stops for ever before a call, as in ``Event().wait()``; its other threads go on. Time
    from there to the end of the survivors' first average without it, the latest of them; bar 1.6 s, each. No step may be
    lost: the survivors' step counters have no gap, also over the interrupted one, and their parameters are alike after every
    step. The hung worker is killed and replaced each time. Then workers started anew train a model of 100 M parameters:
    everybody must stay.
    """
    options = parser(stall.__doc__, elements=1_000_000, stall_timeout=1.0, seed=1)
    options.add_argument("--repeats", type=int, default=10, help="hangs")
    options.add_argument("--big", type=int, nargs="*", default=[2, 4], help="numbers of workers that train 100 M parameters")
    options.add_argument("--steps", type=int, default=20, help="of 100 M parameters")
    args = options.parse_args()
    settings = chosen(args.agent, stall_timeout=args.stall_timeout)
    expected = 5 + 4 * args.repeats + sum(10 + 0.7 * workers * args.steps for workers in args.big)
    report = Report(f"a training thread that hangs, stall_timeout={args.stall_timeout:g}", expected)
    if args.repeats:
        hangs(args.repeats, args.elements, settings, args.seed, report)
    for workers in args.big:
        big(workers, args.steps, settings, report)
    return report.finish()


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
    habit = ["benchmarks.programs:HoldGil", args.hold]
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
    with Job(["-m", "benchmarks", "rest"], 1, settings) as job:
        job.until("it has started", lambda: bool(job.lines(0)), 60.0)
        line = job.lines(0)[0]
        children = psutil.Process(job.processes[0].pid).children(recursive=True)
        return line["seconds"], line["rss"], sum(child.memory_full_info().uss for child in children) / 1e6


def holds() -> int:
    """Where the agent should run: a thread of the worker against a process of its own, on a machine that is not idle.

        python -m benchmarks holds                        # both, side by side; about 6 minutes
        python -m benchmarks holds --agents thread --repeats 1 --seconds 3 --kills 2

    One column each, by turns:

    * a C extension that keeps the GIL of one of 4 workers for 3 s, asleep and spinning: was it excluded, how long was the
    longest pause of the others (they wait for it in any case unless it is excluded); * both cores loaded by busy loops: the
    largest delay of an agent's clock tick, from ``/status``; * a worker that crawls, as one that swaps: SIGSTOP for 100 ms,
    SIGCONT for 20 ms, again and again. (Memory pressure itself cannot be made without swap space; the signal stops all
    threads of the training process, as a page fault storm would. An agent's process is left alone: it is small, and what it
    needs stays resident.); * SIGKILL of a junior worker to the survivors' next average, 1 M parameters; and an average of 4
    KB, whose cost is control; * how long ``FTLib.init`` takes in a worker started anew that founds alone, and the memory of
    worker and agent.

    Only what is to be compared; no bars.
    """
    options = parser(holds.__doc__, agent=False, kills=20, loops=4, elements=1_000_000, seed=1)
    options.add_argument("--agents", nargs="+", choices=[*AGENTS, "default"], default=list(AGENTS))
    options.add_argument("--repeats", type=int, default=3, help="holds of each kind")
    options.add_argument("--hold", type=float, default=3.0, help="seconds for which the GIL is held")
    options.add_argument("--seconds", type=float, default=20.0, help="of load, and of crawling")
    options.add_argument("--stopped", type=float, default=0.1, help="seconds that the crawling worker is stopped for")
    options.add_argument("--running", type=float, default=0.02, help="seconds that it runs in between")
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
