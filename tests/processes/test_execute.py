"""Whole steps as units, over Gloo, with real deaths in the middle: nothing is lost, done twice or by halves."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.programs.stepper import PLACES

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SIZES = [40_000, 300, 20_000]
MOMENTS = ["operation:before@60", "operation:after@63", "finish:before@12", "finish:after@12"]
"""Of the library: within a call of a step, and around its commit."""


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of steppers without workers yet."""
    task = {"program": "tests.processes.programs.stepper:step", "sizes": SIZES, "pause": 0.01}
    with Cluster(tmp_path, nursery, **task, settings={"agent": "thread", "bucket_mb": 0.08}) as cluster:
        yield cluster


def judge(cluster: Cluster) -> None:
    """All checks."""
    verdict = Verdict()
    cluster.until("there is enough to judge", lambda: all(worker.last["step"] > 30 for worker in cluster.alive()))
    cluster.drain()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert verdict.steps > 30


def dies(cluster: Cluster, worker: Worker) -> None:
    """By itself."""
    cluster.until(f"{worker.task.name} dies", lambda: worker.code is not None)
    assert worker.code == -signal.SIGKILL
    worker.killed = worker.ended


def test_killed_in_a_step(cluster: Cluster) -> None:
    """At each place of the program's, and of the library's, one after the other; whoever joins takes the dead one's place."""
    cluster.found(2)
    cluster.training(2)
    for place in PLACES:
        dies(cluster, cluster.join(given={"at": f"{place}@{_later(cluster)}"}))
        cluster.training(2)
    for moment in MOMENTS:
        dies(cluster, cluster.join(kill_at=moment))
        cluster.training(2)
    judge(cluster)


@pytest.mark.soak
def test_killed_at_random_moments(cluster: Cluster) -> None:
    chance = random.Random(7)
    cluster.found(3)
    cluster.training(3)
    for _ in range(8):
        time.sleep(chance.uniform(0.0, 0.3))  # when the fault falls is the variable here
        chance.choice(cluster.alive()).kill()
        cluster.training(2)
        cluster.join()
        cluster.training(3)
    judge(cluster)


def test_an_exception_of_the_programs_and_a_preemption_notice(cluster: Cluster) -> None:
    """It comes back with its next step; who is asked to leave finishes the one under way."""
    cluster.found(3)
    cluster.training(3)
    odd = cluster.join(given={"at": f"collective@{_later(cluster)}", "do": "raise"})
    cluster.until("it raised", lambda: any(event.get("event") == "oops" for event in odd.events))
    cluster.training(4)
    assert [event["rolled_back"] for event in odd.events if event["event"] == "oops"] == [True]
    leaver = cluster.join(given={"at": f"between@{_later(cluster)}", "do": "term"})
    cluster.until("it left", lambda: leaver.code is not None)
    assert leaver.code == 0
    leaver.killed = leaver.ended
    cluster.training(4)
    rolled_back = {worker.task.name: worker.last["rolled_back"] for worker in cluster.alive()}
    cluster.advanced()
    assert rolled_back == {worker.task.name: worker.last["rolled_back"] for worker in cluster.alive()}
    judge(cluster)


def test_down_to_one_and_back(cluster: Cluster) -> None:
    cluster.found(2)
    cluster.training(2)
    cluster.alive()[0].kill()
    cluster.training(1)
    cluster.join()
    cluster.training(2)
    judge(cluster)


def _later(cluster: Cluster) -> int:
    """A step that a joiner makes after its first ones."""
    return max(worker.last["step"] for worker in cluster.alive()) + 20
