"""A spare in a process of its own takes the place of a member that got SIGKILL, with the state that it has by then."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZES = [300_000] * 2
"""7.2 MB of state under Adam."""


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of learners without workers yet."""
    settings = {"agent": "thread", "max_size": 3, "log_level": "info"}
    with Cluster(tmp_path, nursery, program="tests.processes.programs.learner:learn", settings=settings) as cluster:
        yield cluster


def spare(cluster: Cluster, **task: object) -> Worker:
    """One that waits, and has said that it has the state."""
    worker = cluster.join(**task)
    cluster.until(f"{worker} has the state", lambda: "this spare has the state" in worker.output())
    assert not worker.calls, "it is no spare"
    return worker


def identity(worker: Worker) -> str:
    """As it is called in logs."""
    found = re.search(r"start: (\w+)@", worker.output())
    assert found is not None
    return found[1]


@pytest.mark.parametrize("role", ["senior", "sender", pytest.param("junior", marks=pytest.mark.soak)])
def test_spare_takes_the_place_of_whoever_is_killed(cluster: Cluster, role: str) -> None:
    """At once; where its sender took the last average along, it gets the state like any joiner."""
    task = {"sizes": SIZES, "given": {"rest": 0.02}}
    members = cluster.found(3, **task)
    cluster.training(3)
    cluster.advanced()
    warm = spare(cluster, **task)
    senders = [worker for worker in members if f"keeps pace with {identity(worker)}@" in warm.output()]
    assert len(senders) == 1
    others = [worker for worker in members if worker not in senders]
    dead = {"senior": others[0], "sender": senders[0], "junior": others[-1]}[role]
    dead.kill()
    cluster.until("the spare counts", lambda: warm.last.get("who", 0) >> warm.task.slot & 1)
    cluster.training(3)
    for _ in range(3):
        cluster.advanced()
    assert dead in senders or "beside the training" not in warm.output(), "it had to get the state first"
    assert not warm.calls[0]["who"] >> warm.task.slot & 1, "computed on weights of its own"
    assert warm.calls[1]["who"] >> warm.task.slot & 1
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
