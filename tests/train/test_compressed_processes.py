"""Real processes that compress what they average in backward: killed between any two buckets, and at operations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"agent": "thread"}
    with Cluster(tmp_path, nursery, program="tests.train.compressed_learner:learn", settings=settings) as cluster:
        yield cluster


@pytest.mark.parametrize(
    "compression", [pytest.param("bf16", marks=pytest.mark.soak), "int8", pytest.param(2, marks=pytest.mark.soak)]
)
def test_whoever_dies_costs_no_step(cluster: Cluster, compression: str | int) -> None:
    task = {"pause": 0.002}
    given = {"compression": compression}
    cluster.found(3, **task, given=given)
    cluster.training(3)
    for place in range(4):
        joiner = cluster.join(**task, given={**given, "die": place})
        cluster.until("it has died", lambda joiner=joiner: joiner.code is not None)
        joiner.killed = True
        cluster.training(3)
    for number in range(4):
        joiner = cluster.join(**task, given=given, kill_at=f"operation:{'after' if number % 2 else 'before'}@{40 + 3 * number}")
        cluster.until("it has died", lambda joiner=joiner: joiner.code is not None)
        joiner.killed = True
        cluster.training(3)
        cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert verdict.steps > 60
    assert all(worker.last["early"] for worker in cluster.workers if worker.code is None)
