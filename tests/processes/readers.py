"""A job of readers (see ``reader``), and what must be true of it in the end."""

from __future__ import annotations

from typing import Any

from tests.harness.cluster import Cluster, Worker
from tests.harness.verdict import Verdict

from .reader import Orders

__all__ = ["ended", "judge", "reading", "violations"]

LIMIT = 60.0
"""Seconds for the workers to end once nothing happens to them any more."""


def reading(cluster: Cluster, size: int, orders: Orders) -> list[Worker]:
    """So many that read together."""
    workers = cluster.found(size, given=vars(orders))
    cluster.until("all read", lambda: all(worker.calls or worker.code is not None for worker in workers))
    return workers


def ended(cluster: Cluster, limit: float = LIMIT) -> None:
    """Wait until all have ended by themselves."""
    cluster.until("all end", lambda: all(worker.code is not None for worker in cluster.workers), limit)
    for worker in cluster.workers:
        worker.read()


def judge(cluster: Cluster, orders: Orders) -> None:
    """Wait for the end. Every sample was used up once an epoch, whoever is asked; no step was lost, and all were equal."""
    ended(cluster)
    found = violations(cluster.workers, orders.samples, orders.epochs)
    found += cluster.faults()
    assert not found, found


def violations(workers: list[Worker], samples: int, epochs: int) -> list[str]:
    """Of what must be true in the end."""
    verdict = Verdict()
    verdict.check(workers)
    found, finals = list(verdict.violations), dict[int, tuple[str, str]]()
    ends: set[int] = set()
    for worker in workers:
        books = _books(worker)  # also of those that were killed since: what they told was so
        for data, book in books.items():
            name, complete = worker.task.name, book["used"] == book["unique"] == samples
            if not complete and data < max(books):
                found.append(f"{name}: epoch {data} used up {book['used']} samples, {book['unique']} different ones")
            if complete and finals.setdefault(data, (book["digest"], name))[0] != book["digest"]:
                found.append(f"epoch {data}: {name} and {finals[data][1]} have different ledgers")
        ends |= {event["ends"] for event in worker.events if event.get("event") == "done"}
    found += [f"nobody has seen epoch {data} complete" for data in range(epochs) if data not in finals]
    if len(ends) != 1:
        found.append(f"the last loops ended after different steps: {sorted(ends)}")
    return found


def _books(worker: Worker) -> dict[int, dict[str, Any]]:
    """By epoch, what it told last."""
    return {event["data"]: event for event in worker.events if event.get("event") == "epoch" and event["data"] >= 0}
