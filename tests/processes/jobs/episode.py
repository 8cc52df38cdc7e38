"""One cluster's life full of kills at random moments, and the proof after each that nothing was lost.

Most kills fall while training (before, inside, between and after operations), some a moment after another one (inside the view
change), some two at once, some right after the victim was started (inside its own admission), now and then on the most senior.
"""

from __future__ import annotations

import collections
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.harness.cluster import LIMIT, Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict


class Episode:
    """One cluster's life."""

    def __init__(
        self,
        directory: Path,
        seed: int,
        kills: int,
        settings: Mapping[str, Any] | None = None,
        nursery: Nursery | None = None,
        before: Callable[[Cluster], None] | None = None,
        aim: Callable[[Worker], None] | None = None,
        limit: float = LIMIT,
        **task: Any,
    ) -> None:
        """``settings`` and ``task``: of all workers, instead of what is drawn. ``nursery``: where they come from.

        ``before``: called before each event, e.g. to wait until something is as it should be then. ``aim``: called with each
        victim, a moment before it is killed. ``limit``: seconds for all to come up, and for joiners.
        """
        self._before, self._aim, self._limit = before, aim, limit
        chance = self._chance = random.Random(seed)
        self.kills = 0
        self.kinds: collections.Counter[str] = collections.Counter()
        self.pauses: list[float] = []
        """Seconds from each event's last kill until all survivors had averaged without the victims."""
        self.verdict = Verdict()
        self.joins = 0
        self._wanted_kills = kills
        self._target = chance.randint(2, 5)
        buckets = chance.randint(1, 3)
        elements = chance.choice([300, 20_000, 120_000])
        bucket_mb = 0.02 if elements < 1_000 else elements * 4 / 2**20 * 1.01
        sizes = [elements] * buckets if elements >= 1_000 else [elements, 7, 1][:buckets]
        pause = chance.choice([0.0, 0.0, 0.003, 0.01])
        drawn = {"sizes": sizes, "pause": pause, "settings": {"bucket_mb": bucket_mb, **(settings or {})}}
        self.cluster = Cluster(directory, nursery, **{**drawn, **task})
        self.text = f"{self._target} workers, {buckets} x {elements} elements, pauses up to {pause * 1e3:g} ms"

    def run(self) -> None:
        """Kill and replace until enough have died, then drain."""
        with self.cluster as cluster:
            cluster.found(self._target)
            cluster.training(self._target, self._limit)
            while self.kills < self._wanted_kills:
                self._event()
                self.verdict.check(cluster.workers)
                self._complain()
            self._refill()
            cluster.training(limit=self._limit)
            cluster.drain()
            self.verdict.check(cluster.workers)
            self._complain()
            self.joins = sum(1 for worker in cluster.workers if worker.calls) - self._target

    def _complain(self) -> None:
        faults = [*self.verdict.violations, *self.cluster.faults()]
        if faults:
            raise AssertionError("\n  ".join(faults[:10]))

    def _event(self) -> None:
        """One disturbance, and the proof that training goes on."""
        chance, cluster = self._chance, self.cluster
        self._target = min(5, max(2, self._target + chance.choice([-1, 0, 0, 0, 1])))
        self._refill()
        if self._before is not None:
            self._before(self.cluster)
        time.sleep(chance.random() * 0.12)
        veterans = self._veterans()
        kind = chance.choices(["one", "two", "twice", "senior", "joiner"], [45, 12, 20, 13, 10])[0]
        if len(veterans) < 2:
            kind = "joiner"  # killing the last one that holds the state would end the job
        if len(veterans) < 3 and kind in ("two", "twice"):
            kind = "one"
        self.kinds[kind] += 1
        if kind == "joiner":
            victims = [cluster.join()]
            time.sleep(chance.random() * 0.25)
        elif kind == "senior":
            victims = [min(veterans, key=lambda worker: worker.last["rank"])]
        else:
            victims = chance.sample(veterans, 2 if kind in ("two", "twice") else 1)
        for index, victim in enumerate(victims):
            if index and kind == "twice":
                time.sleep(chance.random() * 0.07)
            if len([worker for worker in self._veterans() if worker is not victim]) >= 1:
                if self._aim is not None:
                    self._aim(victim)
                victim.kill()
                self.kills += 1
        began = time.monotonic()
        if chance.random() < 0.5:  # the joiners may come while the others still recover, or when they have
            self._start_missing()
        survivors = [worker for worker in cluster.alive() if worker.calls]
        mask = sum(1 << victim.task.slot for victim in victims if victim.killed)

        def recovered() -> bool:
            return all(
                worker.last["t"] > began and not worker.last["who"] & mask and worker.last["epoch"] > 1
                for worker in survivors
                if worker.alive
            )

        if kind == "joiner":
            cluster.advanced()
        else:
            cluster.until("the survivors average without the victims", recovered, poll=0.004)
            self.pauses.append(max(self._first(worker, began, mask) for worker in survivors) - began)

    def _first(self, worker: Worker, began: float, mask: int) -> float:
        found = began
        for line in reversed(worker.calls):
            if line["t"] <= began or line["who"] & mask:
                break
            found = line["t"]
        return float(found)

    def _veterans(self) -> list[Worker]:
        """Workers that hold the state: each has finished two calls."""
        return [worker for worker in self.cluster.alive() if len(worker.calls) >= 2]

    def _start_missing(self) -> None:
        for _ in range(self._target - len(self.cluster.alive())):
            self.cluster.join()

    def _refill(self) -> None:
        """Bring the cluster to size, mostly wait until all take part."""
        self._start_missing()
        if self._chance.random() < 0.8 or len(self._veterans()) < 2:
            self.cluster.training(limit=self._limit)


def shrink_and_grow(cluster: Cluster, size: int, chance: random.Random) -> None:
    """From ``size`` workers to one and back; each change is seen in an average before the next."""
    while len(workers := cluster.alive()) > 1:
        time.sleep(chance.random() * 0.05)
        chance.choice(workers).kill()
        cluster.training(len(workers) - 1)
    cluster.advanced()
    while len(cluster.alive()) < size:
        cluster.join()
        cluster.training()
