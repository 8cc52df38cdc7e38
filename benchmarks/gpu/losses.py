"""Deaths while kernels spin: how long the others stand still, what the stop takes, when NCCL is back; does anything grow?"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from benchmarks.failures.faults import come_up, lose, refill
from benchmarks.frameworks.accelerator import Carried, all_on, newest, on
from benchmarks.gpu.stand import Bench
from benchmarks.report import spread
from ftlib import FTLib
from ftlib.frameworks.accelerators.managed import ManagedCommunicator
from tests.harness.cluster import Cluster, Worker
from tests.harness.holding import Holding, held
from tests.harness.nursery import Stuck
from tests.harness.verdict import Verdict
from tests.harness.worker import Lines

PAUSE = 0.25
ROWS = {
    "1 of 3 killed while the kernels of the others spin, to their next average": f"<= {PAUSE * 1e3:g} ms",
    "... the stop; until calls go by NCCL again": "",
    "... 200 such kills: steps lost, results that differ; what a survivor holds": "0; no growth",
}
REST = 8.0
"""Seconds until what was freed is gone, and threads with nothing to do have ended."""
LOOK = 0.2
EVERY = 0.5
"""Seconds between two looks at what a worker holds."""
ABSENT = " accelerator: "
"""In a line of the log that says why there is none."""
FEW = 3
"""Kills that may add something."""
START = 30.0
"""Seconds for calls to go by accelerators, at most."""
ALLOWED = {"device MB": 64.0, "threads": 2.0, "descriptors": 4.0}
"""What may have come to be held meanwhile. All of a GPU's memory is seen, the other workers' included."""


class Loser(Carried):
    """A worker's habit: it holds its launches back when told to, and says what stops take and what it holds."""

    def __init__(self, ft: FTLib, lines: Lines, directory: str, framework: str, device: str) -> None:
        super().__init__(ft, lines)
        self._told_of, self._device, self._process = lines, device, psutil.Process()
        self._next = 0.0
        Holding(ft, lines, directory, framework)
        stop = ManagedCommunicator.stop

        def timed(communicator: ManagedCommunicator) -> None:
            began, first = time.monotonic(), not communicator.stopped
            stop(communicator)
            if first:
                lines.write(event="stopped", seconds=time.monotonic() - began)

        ManagedCommunicator.stop = timed  # type: ignore[method-assign]

    def __call__(self) -> None:
        """Before a call: tell what it holds, now and then."""
        now = time.monotonic()
        if now > self._next:
            self._next = now + EVERY
            self._told_of.write(event="holds", **holdings(self._process, self._device))


def holdings(process: psutil.Process, device: str) -> dict[str, float]:
    """Of a process; of the device all that is in use."""
    free, total = torch.cuda.mem_get_info(device) if device != "cpu" else (0, 0)
    held = {"device MB": (total - free) / 1e6, "threads": process.num_threads(), "descriptors": process.num_fds()}
    return {name: float(value) for name, value in held.items()}


def growth(bench: Bench, what: str, before: dict[str, float], look: Callable[[], dict[str, float]]) -> None:
    """A row for each thing that might have grown. What was freed last takes seconds to be gone, so it is looked at again."""
    until, after = time.monotonic() + REST, look()
    while time.monotonic() < until and any(after[name] > before[name] + allowed for name, allowed in ALLOWED.items()):
        time.sleep(LOOK)  # between two looks
        after = look()
    for name, allowed in ALLOWED.items():
        if name == "device MB" and not bench.stand.real:
            continue
        good = after[name] <= before[name] + allowed
        bench.report.row(f"{what}: {name}", f"{before[name]:.0f} -> {after[name]:.0f}", bar=f"+{allowed:g}", good=good)


def measure(bench: Bench) -> None:
    """Rows."""
    args, stand, report = bench.args, bench.stand, bench.report
    chance = random.Random(args.seed)
    habit = ["benchmarks.gpu.losses:Loser", str(bench.directory), stand.accelerated, stand.device]
    task: dict[str, Any] = {"sizes": [args.elements], "device": stand.device, "habit": habit}
    averages, backs, stops, starts = list[float](), list[float](), list[float](), list[float]()
    verdict, kept = Verdict(), list[dict[str, float]]()
    with Cluster(bench.directory, bench.nursery, **task, settings={"framework": stand.accelerated}) as cluster:
        cluster.found(args.workers)
        come_up(cluster, args.workers)
        witness = cluster.workers[0]
        """Nobody kills it."""
        while len(averages) < args.kills and not (averages and bench.over):
            _on_again(cluster, -1)
            if 1 <= len(averages) <= FEW:
                kept[:] = [_held_by(cluster, witness)]  # what only the first ones add stays
            victim = chance.choice([worker for worker in cluster.alive() if worker is not witness])
            with held(cluster, victim):
                loss = lose(cluster, victim)
            averages.append(loss.seconds)
            stops += [
                event["seconds"]
                for worker in loss.survivors
                for event in worker.events
                if event.get("event") == "stopped" and event["t"] > loss.at
            ]
            _on_again(cluster, loss.epoch, len(loss.survivors))
            backs.append(max(on(worker, loss.epoch) for worker in loss.survivors) - loss.at)
            refill(cluster, args.workers)
            report.say(f"{len(averages)} of {args.kills} kills")
        _on_again(cluster, -1)
        if kept and len(averages) > FEW:
            growth(bench, f"a survivor of {len(averages)} kills", kept[0], lambda: _held_by(cluster, witness))
        starts = [event["seconds"] for worker in cluster.workers for event in worker.events if event.get("event") == "ready"]
        cluster.drain()
        verdict.check(cluster.workers)
        faults = list(cluster.faults())
    what = f"1 of {args.workers} killed while the kernels of the others spin"
    good = statistics.median(averages) <= PAUSE if stand.real else None
    report.row(f"{what}, to their next average", spread(averages), bar=f"<= {PAUSE * 1e3:g} ms", good=good)
    report.row("... the stop", spread(stops))
    report.row("... until calls go by the accelerator again", spread(backs))
    report.row("... from a group to an accelerator that works, all members", spread(starts))
    enough = "" if len(averages) >= args.kills else f" (no time for all {args.kills})"
    report.row(f"... {len(averages)} kills{enough}; steps", str(verdict.steps))
    report.verdict(verdict)
    report.row("workers that failed", str(len(faults)), bar="0", good=not faults)
    for fault in faults[:5]:
        print(f"VIOLATION {fault}", flush=True)


def _on_again(cluster: Cluster, epoch: int, size: int = 0) -> None:
    """Wait until the newest calls of all went by accelerators, in an epoch above that one."""
    workers = cluster.alive()

    def all_are() -> bool:
        since = max(epoch, max(newest(worker) for worker in workers) - 1)
        return (not size or len(workers) == size) and all_on(workers, since)

    await_accelerators(cluster, all_are)


def await_accelerators(cluster: Cluster, condition: Callable[[], bool]) -> None:
    """Wait until calls go by them; Stuck with the reason that a worker's log has for none."""
    try:
        cluster.until("calls go by accelerators", condition, START)
    except Stuck as error:
        lines = (line for worker in cluster.alive() for line in worker.output().splitlines())
        raise Stuck(next((line for line in lines if ABSENT in line), str(error).partition("\n")[0])) from None


def _held_by(cluster: Cluster, worker: Worker) -> dict[str, float]:
    """What it holds, said from now on."""
    now = time.monotonic()

    def said() -> list[dict[str, Any]]:
        return [event for event in worker.events if event.get("event") == "holds" and event["t"] > now]

    found = cluster.until("it says what it holds", said)[-1]
    return {name: float(found[name]) for name in ALLOWED}
