"""Workers that are killed, stand still or raise in backward, between any two buckets: the others finish the step, none is lost.

The lines of all are compared with each other, and with a replay without faults of the passes that each step had in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.programs.wrapped import repeated, replayed

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZES = [2_000] * 4
"""Four buckets: a fault may come before any, between two, and after the last."""
PLACES = range(len(SIZES) + 1)


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, nursery, program="tests.processes.programs.wrapped:learn", sizes=SIZES) as cluster:
        yield cluster


def befallen(worker: Worker) -> float:
    """When its fault came; 0 before."""
    return next((float(line["t"]) for line in worker.events if line.get("event") == "befallen"), 0.0)


def judged(cluster: Cluster) -> None:
    """No step lost, none divergent, no pass made twice or for nothing, no error."""
    verdict, workers = Verdict(), cluster.workers
    cluster.read()
    verdict.check(workers)
    final = [worker for worker in workers if worker.code is None]
    found = [*verdict.violations, *cluster.faults(), *repeated(final), *replayed(final, SIZES)]
    assert not found, "\n".join(found)


def on(cluster: Cluster, survivors: list[Worker], steps: int = 3) -> None:
    """Wait until these have finished so many steps more, without anybody else."""
    before = {worker.pid: len(worker.calls) for worker in survivors}
    who = sum(1 << worker.task.slot for worker in survivors)

    def enough() -> bool:
        return all(len(worker.calls) >= before[worker.pid] + steps and worker.last["who"] == who for worker in survivors)

    cluster.until("the others go on", enough)


@pytest.mark.parametrize("views", [True, pytest.param(False, marks=pytest.mark.soak)])
@pytest.mark.parametrize("rest", [0.0, pytest.param(0.01, marks=pytest.mark.soak)])
def test_a_worker_is_killed_between_any_two_buckets(cluster: Cluster, views: bool, rest: float) -> None:
    faults = {str(2 + place): {"what": "kill", "after": place, "number": 8 + 4 * place, "rest": rest} for place in PLACES}
    workers = cluster.found(2 + len(PLACES), given={"views": views, "faults": faults})
    cluster.until("all victims have died", lambda: all(worker.code is not None for worker in workers[2:]))
    for worker in workers[2:]:
        worker.killed = befallen(worker)
    on(cluster, workers[:2])
    judged(cluster)


@pytest.mark.parametrize("place", [2, *(pytest.param(place, marks=pytest.mark.soak) for place in (0, 1, 3, 4))])
@pytest.mark.parametrize("what", [pytest.param("stop", marks=pytest.mark.soak), "hang"])
def test_a_worker_stands_still_between_two_buckets(cluster: Cluster, what: str, place: int) -> None:
    fault = {"what": what, "after": place, "number": 8}
    settings = {"exclude_after": 8.0, "stall_timeout": 8.0}
    workers = cluster.found(3, given={"faults": {"1": fault}}, settings=settings)
    cluster.until("it stands still", lambda: befallen(workers[1]))
    workers[1].killed = befallen(workers[1])
    on(cluster, [workers[0], workers[2]])
    judged(cluster)


@pytest.mark.parametrize("views", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_program_raises_between_any_two_buckets(cluster: Cluster, views: bool) -> None:
    faults: dict[str, Any] = {str(place): {"what": "raise", "after": place, "number": 6 + 3 * place} for place in PLACES}
    workers = cluster.found(len(PLACES), given={"views": views, "faults": faults}, settings={"stall_timeout": 100.0})
    began = time.monotonic()
    cluster.until("each has raised", lambda: all(befallen(worker) for worker in workers))
    cluster.advanced()
    assert time.monotonic() - began < 90.0
    judged(cluster)
