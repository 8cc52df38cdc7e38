"""Real processes that sync seldom, killed at every boundary of a sync: no sync is lost, and none differs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZES = [300, 2000, 100, 900]

WAYS: dict[str, dict[str, Any]] = {
    "blocking": {"sync_every": 4},
    "in turns": {"sync_every": 8, "fragments": 4},
    "delayed": {"sync_every": 6, "delay": 3},
    "delayed in turns": {"sync_every": 12, "fragments": 2, "delay": 4},
}


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"agent": "thread"}
    with Cluster(tmp_path, nursery, program="tests.train.local_sgd.learner:learn", settings=settings) as cluster:
        yield cluster


def task(way: str, **orders: Any) -> dict[str, Any]:
    return {"sizes": SIZES, "pause": 0.002, "given": WAYS[way] | orders}


def judge(cluster: Cluster) -> int:
    """How many syncs there were. None was lost, and none differs: global weights and outer momentum are compared."""
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    return verdict.steps


def lost(cluster: Cluster, worker: Worker) -> None:
    """It has died as it was told to, and the others go on."""
    cluster.until("it has died", lambda: worker.code is not None)
    worker.killed = worker.ended
    left = len(cluster.alive())
    cluster.training(left)
    cluster.advanced()


MOMENTS = [
    "enter@5",
    "operation:before@9",
    "operation:after@9",
    "operation:before@10",
    "finish:before@5",
    "finish:after@5",
    "deliver:before@5",
]
"""The boundaries of a sync."""


def some(way: str, moment: str) -> Any:
    """Every boundary once and every way once; all of each in the soak."""
    usual = (list(WAYS).index(way) - MOMENTS.index(moment)) % len(WAYS) == 0
    return pytest.param(way, moment, marks=[] if usual else pytest.mark.soak)


@pytest.mark.parametrize(("way", "moment"), [some(*each) for each in itertools.product(WAYS, MOMENTS)])
def test_a_member_dies_in_a_sync(cluster: Cluster, way: str, moment: str) -> None:
    """The others finish that sync with the inner steps that they have done."""
    workers = cluster.found(3, **task(way), first={"kill_at": moment})
    lost(cluster, workers[0])
    judge(cluster)


@pytest.mark.parametrize("way", ["delayed", *(pytest.param(way, marks=pytest.mark.soak) for way in WAYS if way != "delayed")])
def test_a_member_dies_between_inner_steps(cluster: Cluster, way: str) -> None:
    """Before, between and after the begin and the end of a sync: each member of a row before another inner step."""
    cluster.found(2, **task(way))
    cluster.training(2)
    for step in range(13, 13 + WAYS[way]["sync_every"]):
        lost(cluster, cluster.join(**task(way, die=step)))
    judge(cluster)


@pytest.mark.parametrize("way", WAYS)
def test_who_joins_in_mid_round_counts_in_the_syncs_after(cluster: Cluster, way: str) -> None:
    cluster.found(2, **task(way))
    cluster.training(2)
    joiner = cluster.join(**task(way))
    cluster.training(3)
    cluster.advanced()
    if way == "delayed":
        cluster.until("syncs are under way beside inner steps", lambda: all(worker.last["early"] for worker in cluster.workers))
    joiner.kill()
    cluster.training(2)
    cluster.advanced()
    judge(cluster)
    for worker in cluster.workers:
        inner = [line["inner"] for line in worker.calls]
        period = WAYS[way]["sync_every"] // WAYS[way].get("fragments", 1)
        assert {b - a for a, b in itertools.pairwise(inner)} <= {period}, "no inner step was lost, or done twice"


@pytest.mark.parametrize("way", WAYS)
def test_inf_in_one_member_is_applied_by_nobody(cluster: Cluster, way: str) -> None:
    """Global weights stay as they are; that member takes them, and the rounds go on."""
    period = WAYS[way]["sync_every"] // WAYS[way].get("fragments", 1)
    step = 8 * period - WAYS[way].get("delay", 0) - 1  # before the eighth sync begins
    workers = cluster.found(3, **task(way), first={"given": WAYS[way] | {"inf": step}})
    cluster.training(3)
    cluster.until("a sync has failed", lambda: all(any(e.get("event") == "failed" for e in w.events) for w in workers))
    cluster.training(3)
    cluster.advanced()
    judge(cluster)
    for worker in workers:
        [failed] = [event for event in worker.events if event.get("event") == "failed"]
        [before] = [line["hash"] for line in worker.calls if line["inner"] == failed["inner"] - period]
        assert failed["hash"] == before and failed["status"] == "Status.FAIL"


@pytest.mark.parametrize("every", [1, 4])
def test_it_averages_weights_as_torch_does(nursery: Nursery, tmp_path: Path, every: int) -> None:
    given = {"sync_every": every, "rendezvous": str(tmp_path / "rendezvous"), "size": 3}
    settings = {"agent": "thread"}
    with Cluster(tmp_path, nursery, program="tests.train.local_sgd.averaging:learn", settings=settings) as cluster:
        workers = cluster.found(3, given=given)
        cluster.until("all have ended", lambda: all(worker.code is not None for worker in workers))
        assert not list(cluster.faults())
        for worker in workers:
            compared = [event for event in worker.events if event["event"] == "compared"]
            assert compared[-1]["syncs"] == 4 and len(compared) == 4 * every
            assert max(event["apart"] for event in compared) < 1e-6


@pytest.mark.parametrize("die", [17, 19])
@pytest.mark.parametrize("way", WAYS)
def test_the_samples_of_who_dies_go_back(cluster: Cluster, way: str, die: int) -> None:
    """Killed in the middle of a round, or of a sync that is under way: others have what it had drawn in that epoch."""
    count, given = 91, task(way, samples=91)
    program = "tests.train.local_sgd.learner:sample"
    workers = cluster.found(3, **given, program=program, first={"given": {**given["given"], "die": die}})
    victim = workers[0]
    cluster.until("it has died", lambda: victim.code is not None)
    cluster.read()
    (died,) = [event for event in victim.events if event.get("event") == "dies"]

    def ended(worker: Worker) -> list[dict[str, Any]]:
        return [event for event in worker.events if event.get("event") == "epoch"]

    def enough() -> bool:
        return all(sum(event["epoch"] >= died["epoch"] for event in ended(worker)) >= 2 for worker in workers[1:])

    cluster.until("the others have ended that epoch and one more", enough)
    wrong = [(worker, event) for worker in workers for event in ended(worker) if event["used"] != list(range(count))]
    assert not wrong
    assert not list(cluster.faults())
