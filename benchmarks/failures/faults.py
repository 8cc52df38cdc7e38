"""Clusters under faults: started and brought back to size; one fault at a time; what should not happen while they train.

Logs of a cluster are kept only if something failed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Report
from tests.harness.cluster import LIMIT, Cluster, Worker
from tests.harness.nursery import Stuck
from tests.processes.jobs.launched import LaunchedRun

COMES_UP = 60.0
"""Seconds for a cluster to come up or to be whole again, on a busy machine."""


@contextlib.contextmanager
def crew(name: str, size: int, *, launched: bool = False, **task: Any) -> Iterator[Cluster]:
    """``size`` workers that train, under ``ftlib run`` if ``launched``; ``task``: fields of ``Task``."""
    directory = Path(tempfile.mkdtemp(prefix=f"ftlib-{name}-"))
    try:
        if launched:
            cluster: Cluster = LaunchedRun(directory, size, restarts=1_000, **task)
        else:
            cluster = Cluster(directory, **task)
        with cluster:
            if not launched:
                cluster.found(size)
            come_up(cluster, size)
            yield cluster
    except Exception:
        print(f"\nlogs in {directory}", flush=True)
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    if os.environ.get("KEEP"):
        print(f"logs in {directory}", flush=True)
    else:
        shutil.rmtree(directory)


def come_up(cluster: Cluster, size: int) -> None:
    """Wait until all train; Stuck at once where one of them failed."""

    def failed() -> list[Worker]:
        return [worker for worker in cluster.workers if worker.code is not None]

    def settled() -> bool:
        alive = cluster.alive()
        return bool(failed()) or (len(alive) == size and all(worker.last.get("size") == size for worker in alive))

    cluster.until(f"{size} workers train together", settled, COMES_UP)
    for worker in failed():
        raise Stuck(f"{worker.task.name} failed: {reason(worker)}")
    cluster.training(size, COMES_UP)


def reason(worker: Worker) -> str:
    """What ended it."""
    worker.read()
    texts = [str(event["text"]) for event in worker.events if event.get("event") == "error"]
    return texts[-1] if texts else f"exit code {worker.code}"


def put_away(cluster: Cluster, worker: Worker) -> None:
    """SIGKILL, also of a stopped one, and wait until it is gone."""
    if worker.code is None:
        with contextlib.suppress(ProcessLookupError):
            worker.signal(signal.SIGKILL)
    cluster.until(f"{worker.task.name} ends", lambda: worker.code is not None, COMES_UP)


def refill(cluster: Cluster, size: int) -> None:
    """Start joiners for those that are gone, also for those that go meanwhile, and wait until all train together."""
    deadline = time.monotonic() + 2 * COMES_UP
    while time.monotonic() < deadline:
        for _ in range(size - len(cluster.alive())):
            cluster.join()

        def settled() -> str:
            alive = cluster.alive()
            if len(alive) < size:
                return "again"
            return "whole" if all(worker.last.get("size") == size for worker in alive) else ""

        if cluster.until(f"{size} workers train together", settled, COMES_UP) == "whole":
            break
    cluster.training(size, COMES_UP)


def after(worker: Worker, fault: float, epoch: int) -> dict[str, Any] | None:
    """The line of the first average in an epoch above ``epoch``, after ``fault`` (CLOCK_MONOTONIC).

    An adopted average does not count: its operations ran before the fault.
    """
    found, calls = None, worker.calls
    for index in range(len(calls) - 1, -1, -1):
        line = calls[index]
        if line["epoch"] <= epoch or line["end"] < fault:
            break
        if not index or calls[index - 1]["adopted"] == line["adopted"]:
            found = line
    return found


def all_after(survivors: Iterable[Worker], fault: float, epoch: int) -> bool:
    """Whether each has such a line."""
    return all(after(worker, fault, epoch) is not None for worker in survivors)


def pause(survivors: Iterable[Worker], fault: float, epoch: int) -> float:
    """Seconds until the last one had its line."""
    lines = [after(worker, fault, epoch) for worker in survivors]
    return max(float(line["end"]) - fault for line in lines if line is not None)


def newest_epoch(workers: Iterable[Worker]) -> int:
    """The newest epoch that any of them has averaged in."""
    return max(int(worker.last["epoch"]) for worker in workers)


@dataclass(frozen=True)
class Loss:
    """A worker that was sent a signal, and the others, who have averaged without it since."""

    victim: Worker
    survivors: list[Worker]
    epoch: int
    """The newest before."""
    at: float
    """CLOCK_MONOTONIC of the signal."""
    seconds: float
    """Until the last survivor's first average without the victim."""


def lose(cluster: Cluster, victim: Worker, number: int = signal.SIGKILL, *, whole: bool = False, limit: float = LIMIT) -> Loss:
    """Send the signal, and wait until the others average again (Stuck after ``limit``).

    ``whole``: the victim's children (its agent, where that is a process) get the signal too.
    """
    workers = cluster.alive()
    survivors = [worker for worker in workers if worker is not victim]
    epoch = newest_epoch(workers)
    children = [child.pid for child in psutil.Process(victim.pid).children(recursive=True)] if whole else []
    fault = victim.killed = victim.signal(number)
    for child in children:
        os.kill(child, number)
    cluster.until("the survivors average without the victim", lambda: all_after(survivors, fault, epoch), limit)
    return Loss(victim, survivors, epoch, fault, pause(survivors, fault, epoch))


def strike(cluster: Cluster, number: signal.Signals, chance: random.Random, **more: Any) -> Loss:
    """A signal for one at random; ``more``: see ``lose``."""
    # Past what the last view change left behind.
    time.sleep(0.3 + chance.random() * 0.2)  # the fault falls anywhere in a call and in a round of probes
    return lose(cluster, chance.choice(cluster.alive()), number, **more)


class Watch:
    """Counts from where the cluster is when this is made. ``refilling``: whether joiners replace whom it loses."""

    def __init__(self, cluster: Cluster, *, refilling: bool = True) -> None:
        self.ended: dict[str, str] = {}
        """Workers that ended though nothing was sent to end them, and what they said."""
        self.removals: set[int] = set()
        """Epochs with fewer members than the one before."""
        self.longest = 0.0
        """Seconds between the ends of two averages of one worker, at most."""
        self.steps: list[float] = []
        """All of those, of all workers."""
        self._cluster = cluster
        self._size = len(cluster.alive())
        self._refilling = refilling
        self._seen = {worker.pid: len(worker.calls) for worker in cluster.workers}

    @property
    def exclusions(self) -> int:
        """How many members were removed, counted both ways (a removal and an admission may share a view)."""
        return max(len(self.ended), len(self.removals))

    @property
    def text(self) -> str:
        """For a table."""
        first = next(iter(self.ended.items()), None)
        return f"{self.exclusions}" + (f" ({first[0]}: {first[1][:160]})" if first else "")

    @property
    def step_text(self) -> str:
        """For a table."""
        workers = max(1, self._size)
        if not self.steps:
            return "none"
        median, longest = statistics.median(self.steps) * 1e3, self.longest
        return f"{len(self.steps) // workers}; median {median:.0f} ms, longest {longest:.2f} s"

    def look(self) -> None:
        """Take in what is new."""
        self._cluster.read()
        for worker in self._cluster.workers:
            start = self._seen.get(worker.pid, 0)
            for index in range(max(1, start), len(worker.calls)):
                before, line = worker.calls[index - 1], worker.calls[index]
                self.steps.append(line["end"] - before["end"])
                self.longest = max(self.longest, self.steps[-1])
                if line["size"] < before["size"]:
                    self.removals.add(line["epoch"])
            self._seen[worker.pid] = len(worker.calls)
            if worker.code is not None and not worker.killed and worker.task.name not in self.ended:
                self.ended[worker.task.name] = reason(worker)
        if self._refilling and self._cluster.alive() and len(self._cluster.alive()) < self._size:
            refill(self._cluster, self._size)

    def train(self, seconds: float, report: Report, *, holds: float = 0.0, chance: random.Random | None = None) -> None:
        """Look on for so long; every ``holds`` seconds, more or less, one worker gets SIGUSR2 (0: never)."""
        chance = chance or random.Random(1)
        began = now = time.monotonic()
        due = began + holds * (0.5 + chance.random()) if holds else float("inf")
        while now < began + seconds:
            self.look()
            if now >= due:
                due += holds * (0.5 + chance.random())
                alive = [worker for worker in self._cluster.alive() if worker.calls]
                if alive:
                    chance.choice(alive).signal(signal.SIGUSR2)
            report.say(f"{now - began:.0f} of {seconds:.0f} s: {self.exclusions} excluded, longest step {self.longest:.2f} s")
            time.sleep(0.25)  # between two looks: each reads the logs of all, which is not to slow them down
            now = time.monotonic()
        self.look()
