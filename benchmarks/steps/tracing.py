"""What it costs to be looked at: traces and the account of time in a healthy step, traces in a recovery, series in Prometheus.

    python -m benchmarks tracing                          # all
    python -m benchmarks tracing --only step --rounds 4000
    python -m benchmarks tracing --only kill --repetitions 20
    python -m benchmarks tracing --only series --workers 8

The step: workers average 4 KB, with traces and without in turns within one job; the paired differences, at the slowest worker.
Beside them the same difference of two averages without: what is no more than that is chance.
The kill: SIGKILL of one of four, in turns with traces, which a collector takes, and four viewers at the most senior agent's
dashboard, and with neither; as ``recovery --secret`` does.
The series: lines of ``/metrics`` at each member of a job that had a kill, a join and a checkpoint, times 64.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import random
import secrets
import socket
import statistics
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.failures.faults import crew
from benchmarks.failures.recovery import alternate
from benchmarks.job import Job
from benchmarks.report import Report, chosen, parser, spread
from benchmarks.steps.dashboard import VIEWERS, viewers
from consensus import KeyRing, Mount
from tests.harness.cluster import Cluster
from tests.harness.collector import Collector

STEP_BAR, KILL_BAR, SERIES_BAR = 5e-6, 3e-3, 9000
ACCOUNT_BAR = 3e-6
PARTS = ("step", "kill", "series")
BEATS = ("Ping", "Ack", "Digest")
"""Messages that go by the clock, whatever the steps do: of digests each member sends one about every five seconds. So as many
are sent in the same time without any step, which is shown beside it."""
WAYS = PLAIN, TRACED, AGAIN = "no traces", "with traces", "no traces again"
ORDERS = list(itertools.permutations(WAYS))
REST = 10.0
"""Seconds without a step."""


def worker(args: argparse.Namespace) -> None:
    """One of the job whose steps are timed."""
    import torch
    import torch.distributed as dist

    from ftlib import FTLib

    torch.set_num_threads(1)
    ft = FTLib.init(trace="1000")
    plane = ft._plane  # noqa: SLF001 - traces are turned on and off within one job
    traces, tensor = plane.traces, torch.ones(1024)
    store = dist.TCPStore("127.0.0.1", args.port, ft.size, ft.rank == 0)
    dist.init_process_group("gloo", store=store, rank=ft.rank, world_size=ft.size, timeout=timedelta(seconds=120))

    def timed(way: str) -> tuple[float, float]:
        """Seconds on the clock, and of this thread's processor time."""
        plane.traces = traces if way == TRACED else None
        dist.barrier()
        began, used = time.perf_counter(), time.thread_time()
        assert ft.allreduce_average(tensor)
        return time.perf_counter() - began, time.thread_time() - used

    for _ in range(50):
        timed(TRACED)
    turns, before, began = [], ft.metrics()["messages"]["sent"], time.monotonic()
    for number in range(args.rounds):
        times = {way: timed(way) for way in ORDERS[number % len(ORDERS)]}
        turns.append([each for way in WAYS for each in times[way]])
    after, took = ft.metrics()["messages"]["sent"], time.monotonic() - began
    slowest = torch.tensor(turns, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    others = {kind: entry["messages"] - before.get(kind, {"messages": 0})["messages"] for kind, entry in after.items()}
    sent = {kind: count for kind, count in others.items() if count and kind not in BEATS}
    spent = _tracer()
    for _ in range(args.rounds):
        timed(TRACED)
    spent = (_tracer() - spent) / args.rounds
    dist.barrier()
    after_all = ft.metrics()["messages"]["sent"]
    time.sleep(REST)  # the time that is measured
    rested = ft.metrics()["messages"]["sent"]
    beats = [_beats(before, after) / took, _beats(after_all, rested) / REST]
    print(json.dumps({"rank": ft.rank, "turns": slowest.tolist(), "sent": sent, "beats": beats, "tracer": spent}), flush=True)
    dist.barrier()
    ft.close()
    dist.destroy_process_group()


def _tracer() -> float:
    """Processor time so far of the thread that makes the spans (see ``pthread_getcpuclockid(3)``)."""
    own = [each.native_id for each in threading.enumerate() if each.name == "ftlib-trace"]
    return sum(time.clock_gettime((~each << 3) | _EXACT_OF_THREAD) for each in own if each is not None)


_EXACT_OF_THREAD = 6


def _beats(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Messages by the clock between two looks."""
    return sum(after[kind]["messages"] - before.get(kind, {"messages": 0})["messages"] for kind in BEATS if kind in after)


def account() -> float:
    """Seconds that the account of time takes for one call."""
    from ftlib.common.counters import State, TimeUse

    count, found = 20_000, []
    for _ in range(9):
        use = TimeUse(0.0)
        use.turn(0.0, State.COMPUTING)
        began = time.thread_time()
        for number in range(count):
            use.entered(number + 0.5)
            use.behind(0.001)
            use.left(number + 1.0)
        found.append((time.thread_time() - began) / count)
    return statistics.median(found)


def step(args: argparse.Namespace, report: Report, collector: Collector) -> None:
    """A healthy average of 4 KB."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = ["-m", "benchmarks", "tracing", "--worker", "--port", str(port), "--rounds", str(args.rounds)]
    with Job(command, args.workers, chosen(args.agent)) as job:
        job.ended(500.0)
        lines = job.all_lines()
    turns = lines[0]["turns"]
    report.row(f"4 KB, {args.workers} workers, no traces, {len(turns)} times", spread([turn[0] for turn in turns]))
    for what, index in {"with traces: paired difference": 0, "the same in processor time of the thread": 1}.items():
        cost, shown = _differences([turn[index + 2] - turn[index] for turn in turns])
        report.row(what, shown, bar="<= +5 us", good=cost <= STEP_BAR)
        report.row("... of two without", _differences([turn[index + 4] - turn[index] for turn in turns])[1])
    spans = statistics.median(line["tracer"] for line in lines)
    report.row("processor time of the thread that makes the spans, a call", f"{spans * 1e6:.1f} us")
    cores = len(os.sched_getaffinity(0))
    both = _differences([turn[3] - turn[1] for turn in turns])[0] + spans * args.workers / cores
    what = f"{both * 1e6:+.1f} us"
    report.row(f"... both, {args.workers} workers on {cores} busy cores", what, bar="<= +5 us", good=both <= STEP_BAR)
    sent = sum((Counter(line["sent"]) for line in lines), Counter[str]())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sent.items()) or "0"
    report.row("messages but those by the clock", f"{kinds} in {len(WAYS) * len(turns)} steps", bar="0", good=not sent)
    busy, rest = (sum(line["beats"][index] for line in lines) / len(lines) for index in (0, 1))
    report.row("... those by the clock, a second and member", f"{busy:.1f} in steps, {rest:.1f} at rest", good=busy <= rest + 1)
    took = account()
    report.row("the account of time, a call", f"{took * 1e6:.2f} us", bar="<= 3 us", good=took <= ACCOUNT_BAR)
    report.row("spans that came", str(len(collector.all())))


def _differences(found: list[float]) -> tuple[float, str]:
    """The median of these, in seconds, and how they are told."""
    found, cost = sorted(found), statistics.median(found)
    low, high = found[len(found) // 20], found[-1 - len(found) // 20]
    return cost, f"{cost * 1e6:+.1f} us (5-95 %: {low * 1e6:+.0f} to {high * 1e6:+.0f})"


def kill(args: argparse.Namespace, report: Report, collector: Collector) -> None:
    """SIGKILL of one."""
    rounds = max(1, round(args.repetitions / args.block))
    without, both = "with neither", f"with traces and {VIEWERS} viewers"
    secret = secrets.token_hex(32)
    settings = chosen(args.agent, secret=secret)
    variants: dict[str, dict[str, Any]] = {without: settings, both: {**settings, "trace": "on"}}
    token = KeyRing([secret]).first.bearer(Mount.PURPOSE)

    def looked(cluster: Cluster) -> contextlib.AbstractContextManager[int]:
        senior = min(cluster.alive(), key=lambda each: int(each.last["rank"]))  # no junior's kill touches it
        return viewers(senior.address, token=token)

    chance = random.Random(args.seed)
    times = alternate(variants, rounds, args.block, chance, beside={both: looked}, workers=args.workers)
    for name, totals in times.items():
        report.row(f"SIGKILL of 1 of {args.workers}, {name}, {len(totals)} times", spread(totals))
    cost = statistics.median(times[both]) - statistics.median(times[without])
    report.row("difference of the medians", f"{cost * 1e3:+.1f} ms", bar="<= +3 ms", good=cost <= KILL_BAR)
    changes = sum(span.name == "view change" for span in collector.all())
    report.row("spans of view changes that came", str(changes))


def series(args: argparse.Namespace, report: Report, _collector: Collector) -> None:
    """What each member exports."""
    with tempfile.TemporaryDirectory() as kept:
        habit = ["tests.processes.programs.saver:Saver", str(Path(kept) / "checkpoints"), 20]
        with crew("series", args.workers, sizes=[20_000, 300], pause=0.02, habit=habit) as cluster:
            cluster.alive()[-1].kill()
            cluster.training(args.workers - 1, 60.0)
            cluster.join()
            cluster.training(args.workers, 60.0)
            cluster.advanced()
            token = KeyRing([cluster.secret]).first.bearer("metrics")
            found = []
            for each in cluster.alive():
                request = urllib.request.Request(f"http://{each.address}/metrics", headers={"Authorization": f"Bearer {token}"})
                with urllib.request.urlopen(request, timeout=30) as response:
                    found.append(sum(not line.startswith(b"#") for line in response))
    report.row(f"series of a member, {args.workers} members", f"{min(found)} to {max(found)}")
    report.row("of 64", str(64 * max(found)), bar=f"<= {SERIES_BAR}", good=64 * max(found) <= SERIES_BAR)


def main() -> None:
    options = parser(__doc__, workers=4, rounds=2000, repetitions=20, block=5, seed=1)
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        worker(args)
        return
    expected = {"step": 20 + args.rounds * 0.027, "kill": args.repetitions * 5.0 + 60, "series": 30}
    report = Report("what it costs to be looked at", sum(expected[part] for part in args.only))
    with Collector() as collector:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        for part in args.only:
            {"step": step, "kill": kill, "series": series}[part](args, report, collector)
    raise SystemExit(report.finish())


if __name__ == "__main__":
    main()
