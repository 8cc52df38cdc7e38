"""Every sample of the elastic sampler once an epoch, with loaders that look ahead in processes of their own."""

from __future__ import annotations

import io
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery
from tests.processes.jobs.readers import judge, reading
from tests.processes.programs.reader import Orders

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of readers without workers yet."""
    with Cluster(
        tmp_path, nursery, program="tests.processes.programs.reader:read", settings={"rejoin": True, "exclude_after": 6.0}
    ) as cluster:
        yield cluster


def further(cluster: Cluster, worker: Worker, steps: int) -> None:
    """Wait until it has made so many more."""
    before = len(worker.calls)
    cluster.until(f"{steps} steps more", lambda: len(worker.calls) >= before + steps)


def test_undisturbed(cluster: Cluster) -> None:
    orders = Orders(samples=101, batch_size=3, epochs=2, rest=0.0)
    reading(cluster, 2, orders)
    judge(cluster, orders)


@pytest.mark.parametrize("loaders", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_kill_join_hang_and_preemption(cluster: Cluster, tmp_path: Path, loaders: int) -> None:
    brake = tmp_path / "brake"
    orders = Orders(samples=800, batch_size=4, epochs=3, loaders=loaders, brake=str(brake))
    first, second, third = reading(cluster, 3, orders)
    further(cluster, first, 10)
    third.kill()
    cluster.training(2)
    further(cluster, first, 5)
    brake.touch()
    fourth = cluster.join(given=vars(orders))
    cluster.training(3)
    second.signal(signal.SIGSTOP)
    cluster.until("the others go on without it", lambda: first.last["size"] == 2)
    second.signal(signal.SIGCONT)
    cluster.training(3)
    first.signal(signal.SIGTERM)
    cluster.until("it leaves", lambda: first.code is not None)
    assert first.code == 0
    further(cluster, fourth, 3)
    brake.unlink()
    judge(cluster, orders)


@pytest.mark.parametrize("loaders", [0, 2])
def test_tar_files_whose_readers_are_killed_and_replaced(cluster: Cluster, tmp_path: Path, loaders: int) -> None:
    """How many records a file holds is told to nobody. Each is used up once an epoch all the same."""
    sizes = (130, 3, 0, 170, 61, 36)
    _write_tars(tmp_path, sizes)
    brake = tmp_path / "brake"
    orders = Orders(
        samples=sum(sizes), batch_size=4, epochs=2, loaders=loaders, brake=str(brake), tars=str(tmp_path), sizes=sizes
    )
    first, _, third = reading(cluster, 3, orders)
    further(cluster, first, 10)
    third.kill()
    cluster.training(2)
    brake.touch()
    cluster.join(given=vars(orders))
    cluster.training(3)
    brake.unlink()
    judge(cluster, orders)


def _write_tars(folder: Path, sizes: tuple[int, ...]) -> None:
    number = 0
    for shard, size in enumerate(sizes):
        with tarfile.open(folder / f"{shard}.tar", "w") as archive:
            for _ in range(size):
                content = str(number).encode()
                info = tarfile.TarInfo(f"{number:05}.cls")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                number += 1
