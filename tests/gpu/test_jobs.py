"""Jobs with NCCL on one GPU: kills, stops, joiners, and the same bits at all ranks; rehearsed here with tensors of the CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import bits
from tests.harness.cluster import Cluster
from tests.harness.gpu import PLACE, on_gpu
from tests.harness.holding import held
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.harness.worker import PAUSE
from tests.processes.faults.test_rehearsal import accelerated, all_is_well, epoch
from tests.processes.test_isolated import judge, named, newest, redone

pytestmark = pytest.mark.process

STANDS = [
    pytest.param(("rehearsal", "cpu"), id="rehearsal"),
    pytest.param(("isolated:rehearsal", "cpu"), id="isolated-rehearsal", marks=pytest.mark.soak),
    on_gpu(("nccl", PLACE), id="nccl"),
    on_gpu(("isolated:nccl", PLACE), id="isolated-nccl"),
]
"""A framework, and where the tensors are."""
stands = pytest.mark.parametrize("stand", STANDS)
ENOUGH = 10
"""Calls to be compared."""
BY_GLOO = [on_gpu(("gloo", PLACE), id="gloo"), on_gpu(("isolated:gloo", PLACE), id="isolated-gloo")]


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path, stand: tuple[str, str]) -> Iterator[Cluster]:
    """Without workers yet. Each has the habit of holding back its operations when a test wants it to."""
    framework, device = stand
    habit = ["tests.harness.holding:Holding", str(tmp_path), framework]
    settings = {"bucket_mb": 0.08, "framework": framework}
    task = {"sizes": [20_000, 300], "pause": PAUSE, "device": device, "habit": habit}
    with Cluster(tmp_path, nursery, settings=settings, **task) as cluster:
        yield cluster


@stands
def test_killed_joined_and_left(cluster: Cluster) -> None:
    workers = cluster.found(2)
    accelerated(cluster, 2)
    since = epoch(cluster)
    cluster.join()
    accelerated(cluster, 3, since)
    since = epoch(cluster)
    workers[1].kill()
    accelerated(cluster, 2, since)
    workers[0].signal(signal.SIGTERM)
    cluster.until("it has left", lambda: workers[0].code is not None)
    assert workers[0].code == 0
    all_is_well(cluster)


@stands
@pytest.mark.soak
def test_killed_while_the_kernels_of_the_others_spin(cluster: Cluster) -> None:
    workers = cluster.found(4)
    accelerated(cluster, 4)
    for victim in workers[3:1:-1]:
        since = epoch(cluster)
        with held(cluster, victim):
            victim.kill()
            left = len(cluster.alive())
            cluster.training(left)
        accelerated(cluster, left, since)
    all_is_well(cluster)


@stands
def test_stopped_while_the_kernels_of_the_others_spin(cluster: Cluster) -> None:
    """It is excluded for its silence; what its device still does when it goes on harms nobody."""
    workers = cluster.found(3, settings={"exclude_after": 8.0})
    accelerated(cluster, 3)
    since, victim = epoch(cluster), workers[2]
    with held(cluster, victim):
        victim.killed = victim.signal(signal.SIGSTOP)
        cluster.training(2)
    accelerated(cluster, 2, since)
    victim.signal(signal.SIGCONT)
    cluster.until("the stopped worker ends", lambda: victim.code is not None)
    victim.read()
    assert victim.events[-1]["text"].startswith("Excluded: ")
    cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not verdict.violations


@stands
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_the_same_bits_at_all_ranks(cluster: Cluster, size: int) -> None:
    """Rounded sums; those of two ranks have one order only, so they are the CPU's, too. By Gloo, and by NCCL."""
    workers = cluster.found(size, program="tests.gpu.bits:average")
    accelerated(cluster, size)
    cluster.until("there is enough to compare", lambda: all(len(worker.calls) >= ENOUGH for worker in workers))
    cluster.drain()
    found: dict[int, set[str]] = {}
    for worker in workers:
        for line in worker.calls:
            found.setdefault(line["inputs"], set()).add(line["hash"])
    assert len(found) >= ENOUGH
    assert all(len(hashes) == 1 for hashes in found.values()), found
    if size == 2:
        slots = [worker.task.slot for worker in workers]
        assert all(hashes == {bits.digest(bits.mean(slots, step))} for step, hashes in found.items())


@pytest.mark.parametrize("stand", [*STANDS[2:], *BY_GLOO])
@pytest.mark.parametrize("program", ["stepper:step", "learner:learn"])
def test_models_on_a_gpu(nursery: Nursery, tmp_path: Path, stand: tuple[str, str], program: str) -> None:
    """Whole steps as units, and plain ones; a joiner gets parameters and the optimizer's state from one GPU to another."""
    framework, device = stand
    task = {"program": f"tests.processes.{program}", "sizes": [40_000, 300, 20_000], "pause": PAUSE, "device": device}
    with Cluster(tmp_path, nursery, settings={"bucket_mb": 0.08, "framework": framework}, **task) as cluster:
        workers = cluster.found(3)
        cluster.training(3)
        if framework.endswith("nccl"):
            accelerated(cluster, 3)
        workers[1].kill()
        cluster.training(2)
        cluster.join()
        cluster.training(3)
        all_is_well(cluster)


@pytest.mark.parametrize("stand", BY_GLOO)
def test_tensors_on_a_gpu_through_cpu_memory(cluster: Cluster) -> None:
    workers = cluster.found(3)
    cluster.training(3)
    with held(cluster, workers[2]):
        workers[2].kill()
        cluster.training(2)
    cluster.join()
    cluster.training(3)
    victim = workers[1]
    victim.killed = victim.signal(signal.SIGSTOP)
    cluster.training(2)
    victim.kill()
    workers[0].signal(signal.SIGTERM)
    cluster.until("it has left", lambda: workers[0].code is not None)
    cluster.advanced()
    all_is_well(cluster)


@pytest.mark.parametrize(
    "stand",
    [
        pytest.param(("isolated:gloo", "cpu"), id="isolated-gloo"),
        on_gpu(("isolated:gloo", PLACE), id="isolated-gloo-on-gpu"),
        on_gpu(("isolated:nccl", PLACE), id="isolated-nccl"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)], ids=str)
def test_the_process_of_a_group_while_its_kernels_spin(cluster: Cluster, number: signal.Signals) -> None:
    """It is replaced, and the step is done again by the same members."""
    workers = cluster.found(3)
    cluster.training(3)
    before = newest(workers)
    with held(cluster, workers[2]):
        for name in ("ftlib-group", "ftlib-accel"):
            for pid in named(workers[0].pid, name):
                os.kill(pid, number)
    redone(cluster, workers, before)
    cluster.drain()
    assert judge(cluster) > 10
