"""SIGKILL of a worker: how long until all others have averaged without it, and how much processor time that takes them.

    python -m benchmarks deaths                          # a junior, a senior, and a junior with 2 GB touched, in turns
    python -m benchmarks deaths --beside ../other        # in turns with another checkout that has this file, and its own .venv

4 workers average 1 M parameters in a tight loop. Time: from ``kill()`` to the return of the first average without the victim,
the latest of the survivors. Processor time: of the survivors and their agents, in the call that the death fell into, less what
a call usually takes. Bars: with 2 GB at most 1.1 times as long as without; beside the other checkout at most 0.7 of its time,
and of its processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.failures.faults import crew, lose
from benchmarks.report import Report, chosen, parser, spread

if TYPE_CHECKING:
    from ftlib import FTLib
    from tests.harness.cluster import Cluster, Worker
    from tests.harness.worker import Lines

HERE = Path(__file__).resolve().parents[2]
LARGE = 2_000
"""MB."""
KINDS = ("junior", "senior", "large")
SLOWER = 1.1
SHARE = 0.7
_PROCESS_TIME = 2
"""Of the clocks of another process (see ``clock_getcpuclockid(3)``) the exact one."""


class Gauge:
    """A worker's habit: processor time per call. SIGUSR2: touch ``megabytes`` before the next call."""

    def __init__(self, ft: FTLib, lines: Lines, megabytes: int) -> None:
        self._ft, self._lines, self._megabytes = ft, lines, megabytes
        self._ballast: torch.Tensor | None = None
        self._asked = False
        me = Path("/proc/self/task")
        children = [pid for task in me.iterdir() for pid in (task / "children").read_text().split()]
        self._clocks = [time.CLOCK_PROCESS_CPUTIME_ID, *((~int(pid) << 3) | _PROCESS_TIME for pid in children)]
        self._spent = self._sum()
        self._epoch = ft.epoch
        self._usual: list[float] = []
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = True

    def _sum(self) -> float:
        return sum(map(time.clock_gettime, self._clocks))

    def __call__(self) -> None:
        """Before a call."""
        spent = self._sum()
        used, self._spent = spent - self._spent, spent
        if self._ft.epoch != self._epoch:
            usual = statistics.median(self._usual[-50:] or [0.0])
            self._epoch = self._ft.epoch
            self._lines.write(event="processor", at_epoch=self._epoch, of=self._ft.size, extra=used - usual)
        else:
            self._usual.append(used)
        if self._asked and self._ballast is None:
            self._ballast = torch.ones(self._megabytes << 20, dtype=torch.uint8)
            self._lines.write(event="touched")
            self._spent = self._sum()


def strike(cluster: Cluster, kind: str, chance: random.Random) -> dict[str, Any]:
    """One death."""
    workers = sorted(cluster.alive(), key=lambda worker: worker.last["rank"])
    victim = workers[0] if kind == "senior" else chance.choice(workers[1:])
    if kind == "large":
        victim.signal(signal.SIGUSR2)
        cluster.until("memory is touched", lambda: _told(victim, "touched"))
    time.sleep(0.4 + chance.random() * 0.1)  # the death falls anywhere in a step
    loss = lose(cluster, victim)

    def extras() -> list[float | None]:
        return [_extra(each, len(loss.survivors), loss.at) for each in loss.survivors]

    cluster.until("they say what that took", lambda: None not in extras())
    return {"kind": kind, "seconds": loss.seconds, "processor": sum(extra or 0.0 for extra in extras())}


def _told(worker: Worker, event: str) -> bool:
    return any(each.get("event") == event for each in worker.events)


def _extra(worker: Worker, size: int, fault: float) -> float | None:
    found = [each for each in worker.events if each.get("event") == "processor" and each["of"] == size and each["t"] > fault]
    return found[0]["extra"] if found else None


def turn(args: argparse.Namespace) -> list[dict[str, Any]]:
    """So many deaths of each kind, in a cluster of their own."""
    found, chance = [], random.Random(args.seed)
    habit = ["benchmarks.failures.deaths:Gauge", LARGE]
    task = {"sizes": [args.elements], "fill": False, "digest": False, "habit": habit, "settings": chosen(args.agent)}
    with crew("deaths", args.workers, **task) as cluster:
        for _ in range(args.repetitions):
            for kind in args.kinds:
                found.append(strike(cluster, kind, chance))
                cluster.join()
                cluster.training(args.workers, 60.0)
    return found


def run(checkout: Path, args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """A turn with the code of a checkout, in a process of its own."""
    python = checkout / ".venv/bin/python"
    older = not (checkout / "benchmarks" / "failures").is_dir()
    module = "benchmarks.deaths" if older else "benchmarks.failures.deaths"
    command = [str(python if python.exists() else sys.executable), "-m", module, "--turn", f"--seed={seed}"]
    command += [f"--{name}={getattr(args, name)}" for name in ("workers", "elements", "repetitions")]
    command += ["--kinds", *args.kinds, *(["--agent", args.agent] if args.agent else [])]
    output = subprocess.run(command, cwd=checkout, stdout=subprocess.PIPE, check=True).stdout
    found: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
    return found


def main() -> int:
    options = parser(__doc__, turns=3, workers=4, elements=1_000_000, seed=1)
    options.add_argument("--beside", type=Path, help="another checkout to compare with")
    options.add_argument("--repetitions", type=int, default=4, help="deaths of each kind in one turn")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.turn:
        print(json.dumps(turn(args)))
        return 0
    checkouts = {"here": HERE} | ({"beside": args.beside.resolve()} if args.beside else {})
    seconds = args.turns * len(checkouts) * (8 + 2.5 * args.repetitions * len(args.kinds))
    report = Report("SIGKILL of one worker", seconds, tuple(checkouts))
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    processor: dict[tuple[str, str], list[float]] = defaultdict(list)
    for number in range(args.turns):
        order = list(checkouts.items())
        for name, checkout in order if number % 2 == 0 else reversed(order):
            for each in run(checkout, args, args.seed + number):
                times[name, each["kind"]].append(each["seconds"])
                processor[name, each["kind"]].append(each["processor"])
    for text, found in (("to the others' next average", times), ("processor time of the others", processor)):
        for kind in args.kinds:
            both = [found[name, kind] for name in checkouts]
            share = statistics.median(both[0]) / statistics.median(both[-1]) if args.beside else None
            good = None if share is None or kind == "large" else share <= SHARE
            bar = "" if share is None else f"{share:.2f} of it, <= {SHARE:g}"
            report.row(f"{kind}, {text}, {len(both[0])} times", *map(spread, both), bar=bar, good=good)
    if {"large", "junior"} <= set(args.kinds):
        ratios = [statistics.median(times[name, "large"]) / statistics.median(times[name, "junior"]) for name in checkouts]
        ratio_texts = [f"{ratio:.2f}" for ratio in ratios]
        report.row(f"{LARGE} MB against none", *ratio_texts, bar=f"<= {SLOWER:g}", good=ratios[0] <= SLOWER)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
