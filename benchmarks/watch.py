"""What should not happen while a cluster trains: members that are excluded, steps that take long."""

from __future__ import annotations

import random
import signal
import statistics
import time

from benchmarks.crew import reason, refill
from benchmarks.report import Report
from tests.processes.cluster import Cluster

__all__ = ["Watch"]


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
