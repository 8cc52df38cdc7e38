"""Kills at random and at chosen moments: no step lost, none divergent, nobody stuck, no survivor that errs."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.gpu import PLACE, on_gpu
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.jobs.episode import Episode, shrink_and_grow

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # on a busy machine; each wait has a deadline of its own

TRAINING = ["enter@30", "operation:before@30", "operation:after@31", "finish:before@30", "finish:after@30", "deliver:before@30"]
"""Moments of a call. Two buckets a call, so two operations."""

CHANGE = ["fail", "freeze:before", "freeze:after", "report:before", "report:after", "install", "build:before", "build:after"]
CHANGE += ["ready:before", "ready:after", "activate:before", "activate:after"]
"""Moments of a view change at a member that votes, reports and builds."""

DRIVER = ["propose:before", "propose:after", "send:Accept@2", "drive:before", "drive:after"]
DRIVER += ["send:Install@1", "send:Install@2", "send:Activate@1", "send:Activate@2"]
"""Moments of a view change at the most senior member, which drives it; @2: one member has got the message."""

JOINER = [
    "install",
    "build:after",
    "ready:before",
    "ready:after",
    "activate:before",
    "activate:after",
    "load:before",
    "load:after",
]


def judge(cluster: Cluster) -> int:
    """All checks; how many steps there were."""
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    return verdict.steps


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_fifty_kills_at_random_moments(nursery: Nursery, tmp_path: Path, seed: int) -> None:
    """Two episodes of 25."""
    episode = Episode(tmp_path, seed, 25, nursery=nursery)
    episode.run()
    assert episode.kills >= 25
    assert episode.verdict.steps > 100


def test_killed_in_a_call(cluster: Cluster) -> None:
    cluster.found(3)
    cluster.training(3)
    for moment in TRAINING:
        victim = cluster.join(kill_at=moment)
        _dies(cluster, victim)
        cluster.training(3)
    assert judge(cluster) > 100


def test_killed_in_a_view_change(cluster: Cluster) -> None:
    """A second member dies at each moment of the change that removes a first one."""
    cluster.found(3)
    cluster.training(3)
    for moment in CHANGE:
        armed = cluster.join(kill_at=f"later {moment}", pause=0.0)  # in a call nearly always, or no call of its fails
        cluster.training(4)
        _armed(cluster, armed)
        while not _strikes(cluster, armed):  # told of the death first, it froze before any call of its could fail
            assert moment == "fail"
            cluster.join()
            cluster.training(4)
        _dies(cluster, armed)
        cluster.training(2)
        cluster.join()
        cluster.training(3)
    judge(cluster)


@pytest.mark.parametrize("moment", DRIVER)
def test_the_driver_of_a_view_change_is_killed(cluster: Cluster, moment: str) -> None:
    """Somebody else finishes what it began.

    A majority is left: two of four could not go on where a starved machine proves a death too late to discount it.
    """
    [driver, second, *_] = cluster.found(5, first={"kill_at": f"later {moment}"})
    cluster.training(5)
    _armed(cluster, driver)
    second.kill()
    _dies(cluster, driver)
    cluster.training(3)
    judge(cluster)


def test_a_joiner_is_killed_while_it_is_admitted(cluster: Cluster) -> None:
    cluster.found(2)
    cluster.training(2)
    for moment in JOINER:
        _dies(cluster, cluster.join(kill_at=moment))
        cluster.training(2)
        cluster.advanced()
    judge(cluster)


@pytest.mark.parametrize("device", ["cpu", on_gpu(PLACE)], indirect=True)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_down_to_one_and_back(cluster: Cluster, seed: int) -> None:
    cluster.found(4)
    cluster.training(4)
    shrink_and_grow(cluster, 4, random.Random(seed))
    judge(cluster)


def _armed(cluster: Cluster, worker: Worker) -> None:
    cluster.until(f"{worker.task.name} has made ten steps", lambda: len(worker.calls) > 10)


def _strikes(cluster: Cluster, armed: Worker) -> bool:
    """Kill one of the others; whether ``armed`` dies of that, or of what comes next, or goes on with those that are left."""
    next(worker for worker in cluster.alive() if worker is not armed).kill()
    left = len(cluster.alive())

    def settled() -> bool:
        return armed.code is not None or all(worker.last.get("size") == left for worker in cluster.alive())

    cluster.until(f"{armed.task.name} dies at {armed.task.kill_at}, or goes on", settled)
    return armed.code is not None


def _dies(cluster: Cluster, worker: Worker) -> None:
    cluster.until(f"{worker.task.name} dies at {worker.task.kill_at}", lambda: worker.code is not None)
    assert worker.code == -signal.SIGKILL
    worker.killed = worker.ended
