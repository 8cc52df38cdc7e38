"""Real processes whose backward averages: one joins and has the order of the buckets, one is killed between any two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZES = [300, 2000, 100, 900, 60, 700]
"""Of the parameters: the second is larger than a bucket."""


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"agent": "thread"}
    with Cluster(tmp_path, nursery, program="tests.train.backward_learner:learn", settings=settings) as cluster:
        yield cluster


def judge(cluster: Cluster) -> None:
    """No step was lost, and none differs."""
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]


def come_and_die(cluster: Cluster, places: Sequence[int], **task: Any) -> list[Worker]:
    """For each of these parameters one joins two others, and dies at its gradient in its fourth average: they go on."""
    joiners = []
    for place in places:
        joiner = cluster.join(**task, given={"die": place})
        cluster.until("it has died", lambda joiner=joiner: joiner.code is not None)
        joiner.killed = True
        cluster.training(2)
        cluster.advanced()
        assert len(joiner.calls) == 3
        joiners.append(joiner)
    return joiners


def test_a_spare_keeps_pace_in_the_order_of_the_others(cluster: Cluster) -> None:
    """It takes the place of who dies at once, as it has the state."""
    task = {"sizes": SIZES, "pause": 0.002, "settings": {"max_size": 2, "log_level": "info"}}
    _, dead = cluster.found(2, **task)
    cluster.training(2)
    cluster.advanced()
    spare = cluster.join(**task)
    cluster.until("it has the state", lambda: "this spare has the state" in spare.output())
    dead.kill()
    cluster.until("it counts", lambda: spare.last.get("who", 0) >> spare.task.slot & 1)
    cluster.training(2)
    cluster.advanced()
    assert "the others wait" not in spare.output()
    judge(cluster)


def test_who_joins_has_the_order_of_the_others(cluster: Cluster) -> None:
    """Whoever dies in the middle of backward, at whichever bucket, costs no step."""
    task = {"sizes": SIZES, "pause": 0.002}
    cluster.found(2, **task)
    cluster.training(2)
    joiners = come_and_die(cluster, range(len(SIZES)), **task)
    assert not any("the others wait" in joiner.output() for joiner in joiners), "they followed"
    judge(cluster)
    orders = [tuple(line["order"]) for worker in cluster.workers for line in worker.calls if line["step"] > 1]
    assert set(orders) == {(0, 1, 2, 3, 4, 5)}
    assert all(worker.last["early"] for worker in cluster.workers if worker.code is None)
