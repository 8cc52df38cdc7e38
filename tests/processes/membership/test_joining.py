"""Workers join a job that goes on: what they get of the model and the optimizer is what the others have, bit for bit.

Where the library has ``recovery_bandwidth``, joins are slowed down by it, so that the faults fall into the transfer for sure.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib import ConfigError
from ftlib.settings.config import resolve
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

SMALL = [200, 199_600, 200]
"""2.4 MB of state under Adam."""
LARGE = [300_000] * 6
"""21.6 MB: more stripes than donors."""


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of learners without workers yet."""
    settings = {"agent": "thread"}  # quicker to start
    with Cluster(tmp_path, nursery, program="tests.processes.programs.learner:learn", settings=settings) as cluster:
        slow(cluster, 0)
        yield cluster


def slow(cluster: Cluster, rate: float) -> bool:
    """Let the joiners of ``cluster`` receive so many bytes a second (0: as they can); whether they can be told."""
    try:
        resolve({"recovery_bandwidth": rate})
    except ConfigError:
        return False
    cluster.clear(cluster.directory, recovery_bandwidth=rate)
    return True


def found(cluster: Cluster, size: int, **task: Any) -> list[Worker]:
    """So many, in training."""
    workers = cluster.found(size, **task)
    cluster.training(size)
    cluster.advanced()
    return workers


def calling(cluster: Cluster, *joiners: Worker) -> None:
    """Wait until these are about to enter their first call."""

    def entering() -> bool:
        return all(any(event.get("event") == "calling" for event in joiner.events) for joiner in joiners)

    cluster.until(f"{joiners} enter their first call", entering)


def counted(cluster: Cluster, joiner: Worker) -> None:
    """Wait until the gradients of ``joiner`` are in an average."""
    cluster.until(f"{joiner} counts", lambda: joiner.last.get("who", 0) >> joiner.task.slot & 1)


def judge(cluster: Cluster) -> None:
    """Everybody has made more steps; all of them were equal everywhere, and none was lost."""
    cluster.training()
    for _ in range(3):
        cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert all(line["call"] == line["step"] for worker in cluster.workers for line in worker.calls), "an average was no step"


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("sgd", marks=pytest.mark.soak)])
def test_joiner_has_what_the_others_have(cluster: Cluster, optimizer: str) -> None:
    task = {"sizes": SMALL, "given": {"optimizer": optimizer}}
    found(cluster, 3, **task)
    joiner = cluster.join(**task)
    counted(cluster, joiner)
    judge(cluster)
    first = joiner.calls[0]
    assert not first["who"] >> joiner.task.slot & 1, "computed on weights of its own"
    assert first["step"] > 2


def test_joiner_is_killed_in_mid_join(cluster: Cluster) -> None:
    certain = slow(cluster, 2e5)
    found(cluster, 2, sizes=SMALL)
    for delay in (0.0, 0.1, 0.4):
        joiner = cluster.join(sizes=SMALL)
        calling(cluster, joiner)
        time.sleep(delay)
        joiner.kill()
        cluster.training(2)
        assert not (certain and joiner.calls), "it had joined by then"
        cluster.advanced()
    judge(cluster)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_donor_is_killed_in_mid_transfer(cluster: Cluster, rank: int) -> None:
    certain = slow(cluster, 4e6)
    workers = found(cluster, 3, sizes=LARGE)
    joiner = cluster.join(sizes=LARGE)
    calling(cluster, joiner)
    time.sleep(0.7 if certain else 0.1)
    cluster.read()
    assert not (certain and joiner.calls), "it had joined by then"
    next(worker for worker in workers if worker.last["rank"] == rank).kill()
    counted(cluster, joiner)
    judge(cluster)


def test_all_donors_of_a_part_are_killed(cluster: Cluster) -> None:
    """Two at once, whichever parts they have in common, and then a third one: one is left that has the state."""
    certain = slow(cluster, 2e6)
    workers = sorted(found(cluster, 4, sizes=LARGE), key=lambda worker: worker.last["rank"])
    joiner = cluster.join(sizes=LARGE)
    calling(cluster, joiner)
    time.sleep(0.7 if certain else 0.1)
    for worker in workers[1:3]:
        worker.kill()
    cluster.until("the other two go on", lambda: all(line["size"] == 3 for line in (workers[0].last, workers[3].last)))
    assert not (certain and joiner.calls), "it had joined by then"
    workers[3].kill()
    counted(cluster, joiner)
    judge(cluster)


def test_two_join_at_once(cluster: Cluster) -> None:
    slow(cluster, 3e6)
    found(cluster, 2, sizes=SMALL)
    joiners = [cluster.join(sizes=SMALL) for _ in range(2)]
    for joiner in joiners:
        counted(cluster, joiner)
    judge(cluster)


def test_joiner_with_another_shape_is_refused(cluster: Cluster) -> None:
    """As many elements in as many tensors: the averages alone would fit."""
    workers = found(cluster, 2, sizes=SMALL)
    before = max(worker.last["epoch"] for worker in workers)
    bad = cluster.join(sizes=SMALL, given={"transposed": True})
    cluster.until("it ends", lambda: bad.code is not None)
    [error] = [event["text"] for event in bad.events if event.get("event") == "error"]
    assert re.search("^ConfigError: .*(shape|size)", error), error
    assert bad.code == 1 and not bad.calls
    bad.killed = bad.ended
    cluster.training(2)
    cluster.advanced()
    assert max(worker.last["epoch"] for worker in workers) > before, "it had not even been admitted"
    assert not [fault for fault in cluster.faults() if not fault.startswith(bad.task.name)]
    bad.code, bad.events = -signal.SIGKILL, []  # judged
    judge(cluster)


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"schedule": True}, marks=pytest.mark.soak),
        {"clip": 1.0},
        pytest.param({"schedule": True, "clip": 1.0}, marks=pytest.mark.soak),
    ],
    ids=["schedule", "clip", "both"],
)
def test_what_a_step_of_the_optimizer_does_not_do(cluster: Cluster, given: dict[str, Any]) -> None:
    """A program that does more between two averages than the library could repeat: its joiners have the right state as well."""
    slow(cluster, 3e6)
    found(cluster, 2, sizes=SMALL, given=given)
    joiner = cluster.join(sizes=SMALL, given=given)
    counted(cluster, joiner)
    judge(cluster)


def test_buffers_are_those_of_a_donor(cluster: Cluster) -> None:
    """Every worker's running statistics are its own; the joiner begins with those of another one as they were then."""
    slow(cluster, 1e6)
    task = {"sizes": [1_000], "given": {"normed": True}}
    workers = found(cluster, 3, **task)
    joiner = cluster.join(**task)
    counted(cluster, joiner)
    cluster.advanced()
    first = joiner.calls[0]
    others = [line["buffers"] for worker in workers for line in worker.calls if line["step"] == first["step"]]
    assert len(set(others)) == 3
    assert first["buffers"] in others
    judge(cluster)


@pytest.mark.soak
def test_joiner_that_is_slower_than_the_others(cluster: Cluster) -> None:
    """Its optimizer takes longer than all that the others do in a step: it would never keep up with them."""
    slow(cluster, 3e6)
    workers = found(cluster, 2, sizes=SMALL, given={"rest": 0.01})
    joiner = cluster.join(sizes=SMALL, given={"drag": 0.1})
    counted(cluster, joiner)
    judge(cluster)
    assert workers[0].last["done"] - workers[0].last["began"] > 0.05, "nobody waits for it"
