"""One fault at a time, and how long until every survivor has averaged without the victim."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterable
from typing import Any

import psutil

from tests.processes.cluster import LIMIT, Cluster, Worker

__all__ = ["after", "all_after", "newest_epoch", "pause", "strike"]


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


def strike(
    cluster: Cluster, number: signal.Signals, chance: random.Random, *, whole: bool = False, limit: float = LIMIT
) -> tuple[Worker, float]:
    """A signal for one at random; who it was, and the seconds until the survivors average again (Stuck after ``limit``).

    ``whole``: the victim's children (its agent, where that is a process) get the signal too.
    """
    # Past what the last view change left behind, and at whatever moment of a call and of a probe round.
    time.sleep(0.3 + chance.random() * 0.2)  # see above
    cluster.read()
    workers = cluster.alive()
    victim = chance.choice(workers)
    survivors = [worker for worker in workers if worker is not victim]
    epoch = newest_epoch(workers)
    children = [child.pid for child in psutil.Process(victim.pid).children(recursive=True)] if whole else []
    fault = victim.signal(number)
    victim.killed = fault
    for child in children:
        os.kill(child, number)
    cluster.until("the survivors average without the victim", lambda: all_after(survivors, fault, epoch), limit)
    return victim, pause(survivors, fault, epoch)
