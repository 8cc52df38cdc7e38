"""Training on a GPU as programs do it: the wrappers, gradient scalers, checkpoints, torchft's names.

Where there is none, the same programs run on the CPU in other tests; what is their like here runs by Gloo on the CPU, too.
"""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from ftlib.checkpoints.checkpoint import newest
from ftlib.checkpoints.names import complete
from tests.gpu.training import SAVED
from tests.harness.cluster import Cluster
from tests.harness.gpu import PLACE, on_gpu
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.torchft.test_processes import LONG, Replicas, launched
from tests.train.cases import CASES, near
from tests.train.test_backward_processes import come_and_die
from tests.train.test_oracle import SIZE, consulted

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NCCL = [on_gpu(("gloo", PLACE), id="gloo"), on_gpu(("nccl", PLACE), id="nccl")]
STANDS = [pytest.param(("gloo", "cpu"), id="cpu"), *NCCL]
"""A framework, and where the tensors are."""
SIZES = [300, 20_000, 100, 900, 60, 700]
"""Of the parameters: the second is larger than a bucket."""


def judge(cluster: Cluster) -> None:
    """No step was lost, and none differs."""
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]


def begun(worker: Any) -> dict[str, Any] | None:
    """What a worker began with."""
    return next((event for event in worker.events if event.get("event") == "begins"), None)


@pytest.mark.parametrize("stand", STANDS)
def test_gradients_are_those_of_torch(nursery: Nursery, tmp_path: Path, stand: tuple[str, str]) -> None:
    framework, device = stand
    wanted = consulted(nursery, tmp_path, device)
    for views in (False, True):
        given = {"views": views, "found": str(tmp_path / f"views-{views}-")}
        task = {"program": "tests.gpu.training:gradients", "device": device, "given": given}
        with Cluster(tmp_path / str(views), nursery, settings={"framework": framework}, **task) as cluster:
            workers = cluster.found(SIZE)
            cluster.until("both have ended", lambda workers=workers: all(worker.code is not None for worker in workers))
            assert [worker.code for worker in workers] == [0] * SIZE, "".join(worker.output() for worker in workers)
        for rank in range(SIZE):
            found = pickle.loads(Path(f"{given['found']}{rank}").read_bytes())
            assert list(found) == list(CASES)
            for name, tensors in found.items():
                near(tensors, [None if tensor is None else tensor.cpu() for tensor in wanted[rank][name]])


@pytest.mark.parametrize("stand", NCCL)
def test_who_joins_and_dies_in_backward_costs_no_step(nursery: Nursery, tmp_path: Path, stand: tuple[str, str]) -> None:
    framework, device = stand
    task = {"sizes": SIZES, "pause": 0.002, "device": device}
    program = "tests.train.backward_learner:learn"
    with Cluster(tmp_path, nursery, program=program, settings={"framework": framework}, **task) as cluster:
        cluster.found(2)
        cluster.training(2)
        joiners = come_and_die(cluster, (0, 3, 5))
        assert not any("the others wait" in joiner.output() for joiner in joiners), "they followed"
        judge(cluster)
        orders = [tuple(line["order"]) for worker in cluster.workers for line in worker.calls if line["step"] > 1]
        assert set(orders) == {(0, 1, 2, 3, 4, 5)}
        assert all(worker.last["early"] for worker in cluster.workers if worker.code is None), "it was under way in backward"


@pytest.mark.parametrize("stand", NCCL)
def test_a_scaler_and_clipping(nursery: Nursery, tmp_path: Path, stand: tuple[str, str]) -> None:
    """A joiner follows steps that are scaled and clipped, and has what the others have, while one of them is killed."""
    framework, device = stand
    task = {"sizes": [200, 199_600, 200], "device": device}
    settings = {"nonfinite": "pass", "recovery_bandwidth": 3e6, "framework": framework}
    with Cluster(tmp_path, nursery, program="tests.train.learner:learn", settings=settings, **task) as cluster:
        workers = cluster.found(3)
        cluster.training(3)
        joiner = cluster.join()
        cluster.until("it counts", lambda: joiner.last.get("who", 0) >> joiner.task.slot & 1)
        workers[0].kill()
        cluster.training(3)
        for _ in range(3):
            cluster.advanced()
        judge(cluster)


@pytest.mark.parametrize("stand", STANDS)
def test_a_job_that_was_killed_goes_on_from_its_checkpoint(nursery: Nursery, tmp_path: Path, stand: tuple[str, str]) -> None:
    framework, device = stand
    place = tmp_path / "checkpoints"
    task = {"sizes": [20_000, 300], "pause": 0.02, "device": device, "given": {"checkpoints": str(place)}}
    program = "tests.gpu.training:save"
    with Cluster(tmp_path, nursery, program=program, settings={"framework": framework}, **task) as cluster:
        workers = cluster.found(2)
        cluster.until("there are some", lambda: len(complete(place)) > 1)
        for worker in workers:
            worker.kill()
        cluster.until("all are dead", lambda: all(worker.code is not None for worker in workers))
        cluster.read()
        found = newest(place)
        assert found is not None and found.name.step % SAVED == 0
        digests = {call["step"]: call["hash"] for worker in workers for call in worker.calls}
        again = cluster.found(3, settings={"resume": str(place)})
        cluster.until("three go on", lambda: all(len(worker.calls) > 2 * SAVED for worker in again))
        for worker in again:
            assert (begins := begun(worker)) is not None
            assert begins["at"] == found.name.step
            assert begins["digest"] == digests[found.name.step], "bit for bit"
        hashes = [{call["step"]: call["hash"] for call in worker.calls} for worker in again]
        for each in hashes[1:]:
            assert all(each[step] == hashes[0][step] for step in each.keys() & hashes[0].keys())
        assert not list(cluster.faults())


@pytest.mark.parametrize(
    "options", [on_gpu((), id="ddp"), on_gpu(("--pure",), id="pure"), on_gpu(("--diloco", "--sync-quorum"), id="diloco")]
)
def test_a_program_of_torchft(nursery: Nursery, tmp_path: Path, options: tuple[str, ...]) -> None:
    """One is killed and comes back."""
    replicas = Replicas(tmp_path)
    with launched(nursery, tmp_path, *options, "--device", PLACE, size=2) as launcher:
        first, _ = sorted(replicas.together(2, launcher))
        os.kill(first, signal.SIGKILL)
        assert first not in replicas.together(2, launcher)
        replicas.end()
        assert launcher.wait(LONG) == 0, launcher.stdout + launcher.stderr
    replicas.check()
