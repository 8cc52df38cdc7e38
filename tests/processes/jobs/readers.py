"""A job of readers (see ``reader``), and what must be true of it in the end."""

from __future__ import annotations

from typing import Any

from tests.harness.cluster import Cluster, Worker
from tests.harness.verdict import Verdict
from tests.processes.programs.reader import Orders

LIMIT = 120.0
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
    found, complete = ledger_violations(workers, samples)
    ends = {event["ends"] for worker in workers for event in worker.events if event.get("event") == "done"}
    found = [*verdict.violations, *found]
    found += [f"nobody has seen epoch {data} complete" for data in range(epochs) if data not in complete]
    if len(ends) != 1:
        found.append(f"the last loops ended after different steps: {sorted(ends)}")
    return found


def ledger_violations(workers: list[Worker], samples: int) -> tuple[list[str], set[int]]:
    """Samples that were not used up once in a data epoch, and ledgers that differ; the epochs that were seen complete."""
    found, finals = list[str](), dict[int, tuple[str, str]]()
    for worker in workers:
        books = _books(worker)
        for data, book in books.items():
            name, complete = worker.task.name, book["used"] == book["unique"] == samples
            if not complete and data < max(books):
                found.append(f"{name}: epoch {data} used up {book['used']} samples, {book['unique']} different ones")
            if complete and finals.setdefault(data, (book["digest"], name))[0] != book["digest"]:
                found.append(f"epoch {data}: {name} and {finals[data][1]} have different ledgers")
    return found, set(finals)


def _books(worker: Worker) -> dict[int, dict[str, Any]]:
    """By epoch, what it told last.

    Also what one told that was killed since, but for its last call: nobody else may have finished that one as it did.
    """
    last = worker.last.get("t", 0.0) if worker.killed and worker.code != 0 else float("inf")
    told = [event for event in worker.events if event.get("event") == "epoch" and event["t"] < last]
    return {event["data"]: event for event in told if event["data"] >= 0}
