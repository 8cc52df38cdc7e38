"""Workers that meet in a directory and nowhere else: ``consensus="shared_storage"``, and policy ``storage`` for gossip."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consensus.protocol.agreement.register import KEPT
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.harness.worker import PAUSE

pytestmark = pytest.mark.process

LEASE = 6.0


@contextlib.contextmanager
def sharing(nursery: Nursery, directory: Path, **settings: Any) -> Iterator[Cluster]:
    """A job in ``directory``; no introducers."""
    settings = {"bucket_mb": 0.08, "consensus": "shared_storage", "storage": f"file://{directory}", "lease": LEASE, **settings}
    directory.mkdir(exist_ok=True)
    with Cluster(directory.parent / "workers", nursery, sizes=[20_000, 300], pause=PAUSE, settings=settings) as cluster:
        yield cluster


def found(cluster: Cluster, size: int, **settings: Any) -> list[Worker]:
    return cluster.found(size, settings={"introducers": [], "bind": "127.0.0.1:0", **settings})


def join(cluster: Cluster) -> Worker:
    return cluster.join(settings={"introducers": []})


def judge(cluster: Cluster, workers: Iterable[Worker] | None = None) -> int:
    """No step lost, none divergent, nobody that erred; the newest step."""
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers if workers is None else workers)
    assert not [*verdict.violations, *cluster.faults()]
    return verdict.steps


def stored(directory: Path, kind: str) -> list[str]:
    return sorted(path.name for path in directory.glob(f"*/*/keys/{kind}/*"))


def together(cluster: Cluster, workers: list[Worker]) -> None:
    """Wait until exactly those of ``workers`` that live average together."""

    def same() -> bool:
        alive = [worker for worker in workers if worker.alive]
        mask = sum(1 << worker.task.slot for worker in alive)
        return all(worker.last.get("who") == mask for worker in alive)

    cluster.until("the workers of a job train together", same)


def test_killed_joined_left_and_stopped(nursery: Nursery, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with sharing(nursery, store, rejoin=True) as cluster:
        found(cluster, 4)
        cluster.training(4)
        cluster.workers[1].kill()
        cluster.training(3)
        joiner = join(cluster)
        cluster.training(4)
        left = next(worker for worker in cluster.alive() if worker is not joiner)
        left.signal(signal.SIGTERM)
        cluster.until("it has left", lambda: left.code is not None)
        assert left.code == 0
        cluster.training(3)
        stopped = cluster.alive()[0]
        began = stopped.killed = stopped.signal(signal.SIGSTOP)
        cluster.training(2)
        assert time.monotonic() - began > LEASE * 0.5, "it could have been alive for so long"
        stopped.signal(signal.SIGCONT)
        stopped.killed = 0.0
        cluster.training(3)
        assert stopped.last["lifetime"] == 1, "it was voted out, learnt it, and joined again"
        cluster.until("old records are cleaned away", lambda: len(stored(store, "views")) == KEPT)
        cluster.until("there is enough to judge", lambda: all(worker.last["step"] > 20 for worker in cluster.alive()))
        cluster.drain()
        assert judge(cluster) > 20
        assert stored(store, "leases") == [], "whoever left took its lease along, and that of whom it found dead"


def test_a_whole_job_starts_again_in_its_old_directory(nursery: Nursery, tmp_path: Path) -> None:
    """After all were killed (with their leases still warm), and after all left. In active mode."""
    with sharing(nursery, tmp_path / "store", mode="active") as cluster:
        epochs = []
        for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
            workers = found(cluster, 3)
            cluster.training(3)
            cluster.advanced()
            judge(cluster, workers)
            epochs.append(workers[0].last["epoch"])
            workers[2].kill()
            cluster.training(2)
            for worker in workers[:2]:
                worker.signal(end)
            cluster.until("all have ended", lambda workers=workers: all(worker.code is not None for worker in workers))
        assert epochs == sorted(set(epochs)), "no epoch is decided twice"


def test_two_jobs_in_one_directory(nursery: Nursery, tmp_path: Path) -> None:
    with sharing(nursery, tmp_path / "store") as cluster:
        here = [found(cluster, 2), found(cluster, 3, job="another")]
        for workers in here:
            together(cluster, workers)
        here[1][0].kill()
        for workers in here:
            together(cluster, workers)
        cluster.advanced()
        for workers in here:
            judge(cluster, workers)
        assert {worker.last["epoch"] for worker in here[0]} == {1}


@pytest.mark.parametrize("backend", ["shared_storage", "gossip"])
def test_down_to_one_and_up_again(nursery: Nursery, tmp_path: Path, backend: str) -> None:
    """Most of the cluster dies at once: the record decides, not the majority."""
    more = {} if backend == "shared_storage" else {"consensus": "gossip", "policy": "storage"}
    with sharing(nursery, tmp_path / "store", **more) as cluster:
        cluster.found(4) if more else found(cluster, 4)
        cluster.training(4)
        for worker in cluster.workers[1:]:
            worker.kill()
        cluster.training(1)
        cluster.join() if more else join(cluster)
        cluster.training(2)
        judge(cluster)


def test_a_lease_with_another_secret_keeps_nobody_out(nursery: Nursery, tmp_path: Path) -> None:
    """Its worker was killed, and it stays in the directory for ever. Others found, lose one, and let one in all the same."""
    store = tmp_path / "store"
    with sharing(nursery, store) as cluster:
        (stranger,) = found(cluster, 1, initial_size=2, secret="another secret than the others'")
        cluster.until("it has written its lease", lambda: stored(store, "leases"))
        (lease,) = stored(store, "leases")
        stranger.kill()
        workers = found(cluster, 3)
        cluster.training(3)
        workers[1].kill()
        cluster.training(2)
        join(cluster)
        cluster.training(3)
        for worker in cluster.alive():
            told = [line for line in worker.output().splitlines() if lease in line]
            assert len(told) == 1 and "start all workers of the job with one secret" in told[0]
            assert "membership cannot change" not in worker.output()
        cluster.drain()
        judge(cluster, [worker for worker in cluster.workers if worker is not stranger])
        assert lease in stored(store, "leases"), "nobody removes what it cannot read"
