"""A shared store that goes away, in training and in the middle of a view change, and comes back. See ``storage``."""

from __future__ import annotations

import functools
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.depot import Depot, depot
from benchmarks.faults import Watch, all_after, crew, newest_epoch, pause, put_away, reason, refill
from benchmarks.report import Report, spread
from tests.processes.cluster import Cluster
from tests.processes.verdict import Verdict

__all__ = ["outage"]

WORKERS = 4
CALM = 5.0
"""Seconds of training before it, to compare with."""
SHORT = 6.0
"""Seconds of all outages but the first in a view change."""
MIDDLE = 0.03
"""A view change takes about so many seconds from the kill to the record: within these the store goes."""
LIMIT = 60.0


class Loss:
    """What one cluster goes through."""

    def __init__(self, place: Depot, cluster: Cluster, chance: random.Random) -> None:
        self._place = place
        self._cluster = cluster
        self._chance = chance
        self.before: list[float] = []
        self.meanwhile: list[float] = []
        """Seconds of every step, before and while the store was away."""
        self.after: list[float] = []
        """Seconds from the store's return to the end of each change."""
        self.through = 0
        """Changes that were decided before the store went."""

    def in_training(self, seconds: float, report: Report) -> None:
        """Away for so long while nothing happens; then somebody joins."""
        calm = Watch(self._cluster, refilling=False)
        calm.train(CALM, report)
        self._place.lose()
        away = Watch(self._cluster, refilling=False)
        away.train(seconds, report)
        self._place.restore()
        self.before, self.meanwhile = calm.steps, away.steps
        self._cluster.join()
        self._cluster.training(WORKERS + 1, LIMIT)

    def in_a_change(self, seconds: float, *, first: bool) -> None:
        """Somebody is killed, the store away: ``first``, or a moment later. It comes back after so long."""
        cluster, chance = self._cluster, self._chance
        time.sleep(0.3 + 0.2 * chance.random())  # at whatever moment of a call and of a probe round
        cluster.read()
        workers = cluster.alive()
        victim = chance.choice(workers)
        survivors = [worker for worker in workers if worker is not victim]
        epoch = newest_epoch(workers)
        if first:
            self._place.lose()
            time.sleep(0.2)  # what was on its way to the store has come back, or never will
            fault = victim.kill()
        else:
            fault = victim.kill()
            time.sleep(MIDDLE * chance.random())  # the change has come so far
            self._place.lose()
        time.sleep(seconds)  # the outage that was ordered
        done = functools.partial(all_after, survivors, fault, epoch)
        cluster.read()
        through = done()
        self._place.restore()
        back = time.monotonic()
        cluster.until("the survivors average without the victim", done, LIMIT)
        if through:
            self.through += 1
        else:
            self.after.append(pause(survivors, fault, epoch) - (back - fault))
        put_away(cluster, victim)

    @property
    def lost(self) -> list[str]:
        """Members that ended though nobody ended them, and why."""
        self._cluster.read()
        ended = [worker for worker in self._cluster.workers if worker.code is not None and not worker.killed]
        return [f"{worker.task.name}: {reason(worker)}" for worker in ended]


def outage(kind: str, seconds: float, changes: int, settings: Mapping[str, Any], report: Report, seed: int) -> None:
    """Rows for one kind of store: away for ``seconds`` in training, and for ``changes`` view changes. Raises Stuck."""
    verdict, chance = Verdict(), random.Random(seed)
    try:
        with (
            depot(kind, mounted=True) as place,
            crew("storage", WORKERS, sizes=[100_000], settings={**settings, "storage": place.url}) as cluster,
        ):
            loss = Loss(place, cluster, chance)
            loss.in_training(seconds, report)
            for number in range(changes):
                report.say(f"{kind}: away in view change {number + 1} of {changes}")
                loss.in_a_change(SHORT if number else seconds, first=number % 2 == 0)
                refill(cluster, WORKERS)
            lost = loss.lost
            verdict.check(cluster.workers)
    except PermissionError as error:
        report.row(f"{kind}: away", f"not measured: {error}")
        return
    before, meanwhile = (statistics.median(steps) * 1e3 for steps in (loss.before, loss.meanwhile))
    longest = max(loss.meanwhile) * 1e3
    text = f"{before:.1f} -> {meanwhile:.1f} ms, longest {longest:.0f} ms; {len(loss.meanwhile) // WORKERS} steps"
    report.row(f"{kind}: away for {seconds:.0f} s in training, a step", text)
    decided = f"; {loss.through} were decided before it went" if loss.through else ""
    report.row(f"{kind}: away in {changes} view changes, done after its return", f"{spread(loss.after, unit='s')}{decided}")
    report.row(f"{kind}: members lost", f"{len(lost)} {'; '.join(lost[:2])[:160]}", bar="0", good=not lost)
    report.verdict(verdict, f"{kind}: ")
