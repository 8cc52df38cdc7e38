"""Jobs whose groups live in processes of their own: kills of workers and of those processes, stops, leavers, nobody left."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlib import FTLib
from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from ftlib.frameworks.isolated.child import REST
from ftlib.launch.processes.process import descendants
from tests.harness.basics import TIMEOUT, eventually, lives
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.harness.worker import PAUSE, Lines
from tests.processes.faults.test_rehearsal import accelerated

pytestmark = pytest.mark.process


CHILDREN = {"isolated:gloo": "ftlib-group", "isolated:rehearsal": "ftlib-accel"}
"""What the processes are called that each framework has for its groups, or for its communicators."""


@pytest.fixture(params=["isolated:gloo"])
def isolated(request: pytest.FixtureRequest) -> str:
    """The framework."""
    return str(request.param)


for_both = pytest.mark.parametrize(
    "isolated", ["isolated:gloo", pytest.param("isolated:rehearsal", marks=pytest.mark.soak)], indirect=True
)


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path, isolated: str) -> Iterator[Cluster]:
    settings = {"bucket_mb": 0.08, "framework": isolated}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=PAUSE, settings=settings) as cluster:
        yield cluster


def named(pid: int, name: str) -> list[int]:
    """The descendants of a process that are called so."""
    found = []
    for each in descendants(pid):
        try:
            if Path(f"/proc/{each}/comm").read_text().strip() == name:
                found.append(each)
        except OSError:
            continue
    return found


def nursery(worker: Worker) -> int:
    """The process that forks the others. One that it has just forked is called like it until it has a name of its own."""
    found: list[int] = []

    def alone() -> bool:
        found[:] = named(worker.pid, "ftlib-nursery")
        return len(found) == 1

    eventually(alone, "it has one nursery")
    return found[0]


class Replaced:
    """A habit: say how many processes were replaced, whenever that changes."""

    def __init__(self, ft: FTLib, lines: Lines) -> None:
        self._ft, self._lines, self._told = ft, lines, 0

    def __call__(self) -> None:
        count = self._ft.metrics()["children_replaced"]
        if count != self._told:
            self._told = count
            self._lines.write(event="replaced", count=count)


def replaced(worker: Worker) -> int:
    """How many it has told of."""
    return max((event["count"] for event in worker.events if event.get("event") == "replaced"), default=0)


def judge(cluster: Cluster) -> int:
    """All checks, once there is enough to judge, and all have ended; how many steps there were."""
    cluster.until("there is enough to judge", lambda: all(worker.last["step"] > 10 for worker in cluster.alive()))
    cluster.drain()
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    return verdict.steps


def newest(workers: list[Worker]) -> int:
    return max(worker.last["epoch"] for worker in workers)


def redone(cluster: Cluster, workers: list[Worker], before: int) -> None:
    """All of them go on, in a newer view than that of epoch ``before``, of the same members."""
    cluster.until("a newer view", lambda: all(worker.last["epoch"] > before for worker in workers))
    done = {worker: len(worker.calls) for worker in workers}
    cluster.until("they go on", lambda: all(len(worker.calls) > done[worker] + 10 for worker in workers))
    assert all(worker.last["size"] == len(workers) for worker in workers)


@for_both
def test_killed_joined_left_and_nobody_stays(cluster: Cluster) -> None:
    workers = cluster.found(3)
    cluster.training(3)
    left = {pid for worker in workers for pid in descendants(worker.pid)}
    assert len({nursery(worker) for worker in workers}) == 3
    workers[1].kill()
    cluster.training(2)
    cluster.join()
    cluster.training(3)
    workers[0].signal(signal.SIGTERM)
    cluster.until("it has left", lambda: workers[0].code is not None)
    assert workers[0].code == 0
    cluster.training(2)
    left |= {pid for worker in cluster.alive() for pid in descendants(worker.pid)}
    assert judge(cluster) > 10
    eventually(lambda: not any(map(lives, left)), "no process is left behind")


def test_processes_of_a_dead_worker_end_when_the_others_have_recovered(cluster: Cluster) -> None:
    """The end of each takes a processor for milliseconds."""
    workers = cluster.found(2)
    cluster.training(2)
    pid = nursery(workers[1])
    groups = named(workers[1].pid, "ftlib-group")
    fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        killed = workers[1].kill()
        assert not poll.poll(200) or time.monotonic() - killed >= REST, "unless this test itself was late"
        assert poll.poll(TIMEOUT * 1000)
    finally:
        os.close(fd)
    assert groups
    eventually(lambda: not any(map(lives, groups)), "they end with the process that forked them")


@pytest.mark.parametrize(
    ("framework", "other"),
    [
        ("gloo", "isolated:gloo"),
        ("isolated:gloo", "gloo"),
        pytest.param("rehearsal", "isolated:rehearsal", marks=pytest.mark.soak),
        pytest.param("isolated:rehearsal", "rehearsal", marks=pytest.mark.soak),
    ],
)
def test_members_with_and_without_such_processes_train_together(cluster: Cluster, framework: str, other: str) -> None:
    """One family: either kind may join the other one, and die; all have the same bits."""
    workers = cluster.found(2, settings={"framework": framework})
    cluster.training(2)
    joiners = [cluster.join(settings={"framework": other}) for _ in range(2)]
    cluster.training(4)
    name = CHILDREN.get(framework) or CHILDREN[other]
    assert [bool(named(worker.pid, name)) for worker in workers] == [framework in CHILDREN] * 2
    assert [bool(named(worker.pid, name)) for worker in joiners] == [other in CHILDREN] * 2
    if "rehearsal" in framework:
        accelerated(cluster, 4)
    workers[0].kill()
    cluster.training(3)
    joiners[0].kill()
    cluster.training(2)
    cluster.advanced()
    assert judge(cluster) > 10


@pytest.mark.parametrize(
    ("number", "isolated"),
    [
        (signal.SIGKILL, "isolated:gloo"),
        (signal.SIGSTOP, "isolated:gloo"),
        (signal.SIGKILL, "isolated:rehearsal"),
        pytest.param(signal.SIGSTOP, "isolated:rehearsal", marks=pytest.mark.soak),
    ],
    indirect=["isolated"],
)
def test_the_process_of_a_group(cluster: Cluster, number: signal.Signals, isolated: str) -> None:
    """It is replaced, spare or not, and the step is finished by the same members. An accelerator comes back, too."""
    workers = cluster.found(3, habit=["tests.processes.test_isolated:Replaced"])
    cluster.training(3)
    for victim in workers[:2]:
        if isolated == "isolated:rehearsal":
            accelerated(cluster, 3)
        before = newest(workers)
        for pid in named(victim.pid, CHILDREN[isolated]):
            os.kill(pid, number)
        redone(cluster, workers, before)
    cluster.until("it is counted", lambda: replaced(workers[0]) and replaced(workers[1]))
    assert "another one takes its place" in workers[0].output()
    hung = workers[2].output().count("it has not answered for")  # a busy machine may keep one from running for so long
    assert replaced(workers[2]) <= hung, "those that were killed for a new view are not"
    its_nursery = nursery(workers[2])
    before = newest(workers)
    os.kill(its_nursery, signal.SIGKILL)
    redone(cluster, workers, before)
    if isolated == "isolated:rehearsal":
        accelerated(cluster, 3, before)
    assert judge(cluster) > 10


@pytest.mark.parametrize("isolated", ["isolated:rehearsal"], indirect=True)
def test_a_process_that_dies_as_it_builds_is_followed_by_another_one(cluster: Cluster) -> None:
    """Nothing fails by that, so nothing asks for another view but the member that lost it. Till then all goes by Gloo."""
    workers = cluster.found(2, environment={VARIABLE: "start_seconds=2.5"})
    cluster.training(2)
    for pid in named(workers[0].pid, CHILDREN["isolated:rehearsal"]):
        os.kill(pid, signal.SIGKILL)
    accelerated(cluster, 2, since=1)
    assert judge(cluster) > 10


@for_both
def test_a_stopped_worker_is_voted_out(cluster: Cluster) -> None:
    """What its process of the group still does reaches nobody."""
    workers = cluster.found(3, settings={"exclude_after": 6.0})
    cluster.training(3)
    victim = workers[2]
    victim.killed = victim.signal(signal.SIGSTOP)
    cluster.training(2)
    victim.signal(signal.SIGCONT)
    cluster.until("the stopped worker ends", lambda: victim.code is not None)
    victim.read()
    assert victim.events[-1]["text"].startswith("Excluded: ")
    cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not verdict.violations
