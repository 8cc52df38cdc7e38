"""The rows of the benchmark of launching."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from benchmarks.launching import distant, work
from benchmarks.launching.called import (
    LIMIT,
    Called,
    caller,
    commands,
    family,
    first_lines,
    folder,
    gone,
    rounds,
    script,
    wait_for,
)
from benchmarks.report import Report, parser, spread
from ftlib import Launcher
from tests.harness.program import ROOT, clean

COLUMNS = ("ftlib run", "Launcher", "torchrun", "torchrunx", "mp.spawn")
WORKERS = 4
BESIDE = 3
"""Rounds in which others are measured, too, where ours is to be seen 50 times within three minutes."""


def cells(times: dict[str, list[float]], notes: dict[str, str] | None = None) -> list[str]:
    """One row, a column for each system."""
    told = {name: spread(values, unit="s") for name, values in times.items()}
    return [told.get(name, "") + (notes or {}).get(name, "") for name in COLUMNS]


def start(args: Namespace, report: Report) -> None:
    times = defaultdict[str, list[float]](list)
    for _ in rounds(args.repetitions):
        for name in commands(args.peer, WORKERS, "start"):
            with folder() as path:
                times[name].append(first_lines(commands(args.peer, WORKERS, "start", path)[name], WORKERS, path))
    limit = 0.6 * statistics.median(times["torchrun"])
    good = statistics.median(times["Launcher"]) <= limit
    report.row("4 workers import torch, until the last first line", *cells(times), bar="<= 0.6x torchrun", good=good)


def failing(args: Namespace, report: Report, how: str) -> None:
    times, whole = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    for number in rounds(args.repetitions):
        for name in ("Launcher", *(["torchrunx"] if args.peer else []), "mp.spawn"):
            if name == "torchrunx" and how == "raise" and whole[name]:
                continue  # once is enough to see that it does not end
            if name != "Launcher" and number >= BESIDE:
                continue
            with folder() as path:
                called = Called(commands(args.peer, WORKERS, "fail", path, how)[name], path)
                try:
                    [(at, text), *_] = called.until("AT ", limit=20.0 if name == "torchrunx" else LIMIT)
                    del at
                    times[name].append(float(text.split()[1]) - float((path / "failed").read_text()))
                except TimeoutError:
                    times[name].append(float("inf"))
                finally:
                    called.end()
                lines = [text for _, text in called.lines if "LINE " in text and text.rstrip().endswith("END")]
                whole[name].append(len(lines))
    notes = {name: f", {min(counts)} lines" for name, counts in whole.items()}
    ours = times["Launcher"]
    good = max(ours) <= 0.5 and min(whole["Launcher"]) == WORKERS * work.LINES
    report.row(f"a worker of 4 {how}s, until the caller knows", *cells(times, notes), bar="<= 0.5 s, all lines", good=good)


def orphans(args: Namespace, report: Report) -> None:
    times, left = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    for number in rounds(args.repetitions):
        others = () if number >= BESIDE else ("torchrun", *(["torchrunx"] if args.peer else []), "mp.spawn")
        for name in ("ftlib run", "Launcher", *others):
            with folder() as path:
                called = Called(commands(args.peer, WORKERS, "family", path)[name], path)
                try:
                    wait_for(path, "pids-*", WORKERS)
                    at = time.monotonic()
                    os.kill(called.process.pid, signal.SIGKILL)
                    took, count = gone(family(path), at, 5.0)
                    times[name].append(took)
                    left[name].append(count)
                finally:
                    called.end()
    notes = {name: f", {max(counts)} left of {len(counts)} times" for name, counts in left.items()}
    good = max(times["Launcher"] + times["ftlib run"]) <= 2.0 and not max(left["Launcher"] + left["ftlib run"])
    report.row("the launcher is killed, until nothing is left", *cells(times, notes), bar="<= 2 s, none left", good=good)


def averages(path: Path) -> dict[int, list[float]]:
    """When each process has made its averages."""
    found = {}
    for file in path.glob("train-*"):
        lines = [line.split() for line in file.read_text().split("\n")[:-1]]
        found[int(file.name.rpartition("-")[2])] = [float(at) for at, size in lines if int(size) == WORKERS]
    return found


def steps(path: Path, pid: int) -> list[float]:
    """When one process has made its averages, in groups of any size."""
    [file] = path.glob(f"train-*-{pid}")
    return [float(line.split()[0]) for line in file.read_text().split("\n")[:-1]]


ANEW = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""With the store that torchrun shares, the workers that it restarts read the addresses of those before and do not meet."""


def replacement(args: Namespace, report: Report) -> None:
    times, pauses, usual = (
        defaultdict[str, list[float]](list),
        defaultdict[str, list[float]](list),
        defaultdict[str, list[float]](list),
    )
    elastic = {"workers_per_host": WORKERS, "max_restarts": 100, "transport": "local"}
    for number in rounds(args.repetitions):
        with folder() as path:
            systems = {
                "ftlib run": script("run", WORKERS, "train", path / "run", restarts=100),
                "Launcher": caller("ftlib", "train", elastic, path / "launcher"),
            }
            if number < BESIDE:  # it may not come back for minutes, and is then waited for in vain
                systems["torchrun"] = script("torchrun", WORKERS, "ddp", path / "torchrun", restarts=100)
            for name, command in systems.items():
                place = Path(command[-1])
                place.mkdir()
                called = Called(command, path, environment=clean(OMP_NUM_THREADS="1", **ANEW))
                try:
                    took, longest, median = replaced(place, 30.0)
                    times[name].append(took)
                    pauses[name].append(longest)
                    usual[name].append(median)
                except TimeoutError as error:
                    print(f"{name}: {error}; {''.join(text for _, text in called.lines)[-1500:]}", file=sys.stderr)
                    times[name].append(float("inf"))
                finally:
                    os.kill(called.process.pid, signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        called.process.wait(20)
                    called.end()
    good = statistics.median(times["Launcher"]) <= 2.0
    report.row("a worker is killed, until its replacement counts (delay 1 s)", *cells(times), bar="<= 2 s", good=good)
    notes = {name: f", usual {spread(values, unit='s')}" for name, values in usual.items()}
    report.row("... the longest step of a survivor until then", *cells(pauses, notes), bar="as kills and joining in figures.md")


def replaced(place: Path, limit: float) -> tuple[float, float, float]:
    """Kill one once all train; seconds until another has averaged in a group as large.

    Also the longest step of a survivor meanwhile, at the death or at the joining, and the median of those before.
    """
    deadline = time.monotonic() + LIMIT
    while len(before := {pid for pid, ends in averages(place).items() if len(ends) > 20}) < WORKERS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(before)} of {WORKERS} train")
        time.sleep(0.05)
    at = time.monotonic()
    deadline = at + limit
    os.kill(min(before), signal.SIGKILL)
    while True:
        ends = [end for pid, ends in averages(place).items() if pid not in before for end in ends]
        if ends:
            time.sleep(0.5)  # the survivors' step with the new one ends, too
            survivors = [steps(place, pid) for pid in before if pid != min(before)]
            took = [(end, end - begin) for each in survivors for begin, end in pairwise(each)]
            longest = max((step for end, step in took if end > at), default=float("inf"))
            return min(ends) - at, longest, statistics.median(step for end, step in took if end <= at)
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody took its place within {limit:.0f} s")
        time.sleep(0.02)


MARK = "FTLIB_BENCHMARK_SEQUENCE"


def resources(path: Path) -> dict[str, int]:
    """What launches may leave: threads, open files and ports of this process, and processes anywhere that began below it."""
    files = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    sockets = {text.removeprefix("socket:[").rstrip("]") for text in files if text.startswith("socket:[")}
    ports = 0
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = [line.split() for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]]
        ports += sum(row[9] in sockets for row in rows)
    processes = 0
    for each in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            processes += f"{MARK}={path}".encode() in each.read_bytes() and each.parent.name != str(os.getpid())
    return {"threads": threading.active_count(), "files": len(files), "ports": ports, "processes": processes}


def sequence(_args: Namespace, report: Report) -> None:
    launcher = Launcher(workers_per_host=2, preload=(), quiet=True, transport="local")
    with folder() as path:
        os.environ[MARK] = str(path)  # all that begins below this process has it
        launcher.run(work.trivial, str(path))
        before, times = resources(path), []
        for _ in range(30):
            began = time.monotonic()
            launcher.run(work.trivial, str(path))
            times.append(time.monotonic() - began)
        launches = [launcher.start(work.trivial, str(path)) for _ in range(4)]
        for launch in launches:
            launch.wait(LIMIT)
        time.sleep(0.5)  # what ends by itself, as threads do
        after = resources(path)
        del os.environ[MARK]
    grown = "".join(f", {name} {before[name]} -> {after[name]}" for name in before)
    good = all(after[name] <= before[name] for name in before)
    report.row("30 launches, then 4 at once", *cells({"Launcher": times}, {"Launcher": grown}), bar="no growth", good=good)


def crowd(args: Namespace, report: Report) -> None:
    times = []
    for _ in rounds(args.repetitions):
        began = time.monotonic()
        launched = Launcher(workers_per_host=64, preload=(), quiet=True, transport="local").run(work.trivial, "")
        times.append(time.monotonic() - began)
        assert len(launched.ranks) == 64
    good = statistics.median(times) <= 6.0
    report.row("64 workers of a function without torch", *cells({"Launcher": times}), bar="<= 6 s", good=good)


def before(args: Namespace, report: Report) -> None:
    """``ftlib run`` of two trees, in turns."""
    if args.before is None:
        print("before: left out, as --before names no other tree")
        return
    starts, ends = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for _ in rounds(args.repetitions):
        for name, tree in (
            ("ftlib run", ROOT),
            ("torchrun", Path(args.before).resolve()),
        ):  # the other tree's: in torchrun's place
            environment = clean(PYTHONPATH=str(tree), OMP_NUM_THREADS="1")
            with folder() as path:
                line = [each.replace("ftlib.launch", "ftlib.cli.main") for each in script("run", WORKERS, "start", path)]
                line.insert(line.index("-n"), "run")
                starts[name].append(first_lines(line, WORKERS, path, environment))
                line[-2:] = ["family", str(path)]
                called = Called(line, path, environment=environment)
                wait_for(path, "pids-*", WORKERS)
                at = time.monotonic()
                os.kill(called.process.pid, signal.SIGKILL)
                took, left = gone(family(path), at, 5.0)
                ends[name].append(took if not left else float("inf"))
                called.end()
    report.row("ftlib run -n 4 of this tree (left), of the other (third): start", *cells(starts))
    report.row("... and until nothing is left of it", *cells(ends))


ROWS: dict[str, Callable[[Namespace, Report], None]] = {
    "start": start,
    "raise": lambda args, report: failing(args, report, "raise"),
    "kill": lambda args, report: failing(args, report, "kill"),
    "orphans": orphans,
    "replacement": replacement,
    "sequence": sequence,
    "crowd": crowd,
    "before": before,
    "hosts": lambda args, report: distant.hosts(args, report, cells),
    "killed": lambda args, report: distant.killed(args, report, cells),
    "cut": lambda args, report: distant.cut(args, report, cells),
    "refused": lambda args, report: distant.refused(args, report, cells),
    "far": lambda args, report: distant.far(args, report, cells),
    "gigabyte": lambda args, report: distant.gigabyte(args, report, cells),
    "healed": lambda args, report: distant.healed(args, report, cells),
    "slurm": lambda args, report: distant.slurm(args, report, cells),
}


TIMES = {
    "raise": 50,
    "kill": 50,
    "orphans": 50,
    "killed": 50,
    "cut": 50,
    "refused": 50,
    "far": 50,
    "slurm": 20,
    "gigabyte": 3,
    "healed": 3,
}
"""How often each row is repeated where no number is given, others ten times; each ends within three minutes."""


def measure(text: str | None) -> int:
    options = parser(text, agent=False, repetitions=0)
    options.add_argument("--only", "--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", dest="rows")
    options.add_argument("--peer", help="an interpreter that has torchrunx")
    options.add_argument("--before", help="another tree of ftlib")
    args = options.parse_args()
    given = args.repetitions
    if args.peer is None:
        print("torchrunx: left out, as --peer names no interpreter that has it")
    report = Report("Launching", 60.0 * len(args.rows), COLUMNS)
    for name in args.rows:
        print(f"{name} ... (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
        args.repetitions = given or TIMES.get(name, 10)
        try:
            ROWS[name](args, report)
        except TimeoutError as error:
            print(f"{name}: {error}", file=sys.stderr)
            report.row(name, *cells({}), bar="ends at all", good=False)
    print(f"load at the end {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return report.finish()
