"""Checkpoints of real processes: the writer killed, stopped, out of room; the whole job killed, and back with another size."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ftlib.checkpoints.depot as keeping
from ftlib import FTLib
from ftlib.checkpoints.checkpoint import Taken, newest
from ftlib.checkpoints.names import complete, parts
from tests.ftlib.state.test_checkpoints import write
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.worker import Lines, _digest
from tests.processes.jobs.launched import LaunchedRun

pytestmark = pytest.mark.process

_ERROR = "training goes on without it"


class Saving:
    """A habit: save every ``every`` steps. Says what state it began with. ``hold``: what its first write does."""

    def __init__(self, ft: FTLib, lines: Lines, directory: str, every: int, hold: str = "") -> None:
        self._ft, self._directory, self._every = ft, directory, every
        registered = ft._lives.life.transfer.registered
        assert registered is not None
        lines.write(event="begins", at=ft.step, digest=_digest(registered.tree(0)["custom"]["params"]))
        if hold:
            getattr(self, hold)(lines)

    def __call__(self) -> None:
        if self._ft.step and self._ft.step % self._every == 0:
            self._ft.save(self._directory)

    def halfway(self, lines: Lines) -> None:
        """Writing takes for ever once the first file is there."""

        def write(taken: Taken, directory: Path) -> int:
            directory.mkdir()
            (directory / "__0_0.distcp").write_bytes(b"half")
            lines.write(event="writing")
            time.sleep(60)
            return 0

        Taken.write = write  # type: ignore[method-assign]

    def at_the_last_moment(self, lines: Lines) -> None:
        """The process is stopped right before the operation that completes the checkpoint: nothing is asked any more."""
        publish = keeping.publish

        def stopped(part: Path, directory: Path) -> None:
            keeping.publish = publish
            lines.write(event="publishing", directory=str(directory))
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)  # to this thread: it does not get any further
            publish(part, directory)

        keeping.publish = stopped


def habit(directory: Path, every: int, hold: str = "") -> list[Any]:
    return ["tests.processes.storage.test_checkpoints:Saving", str(directory), every, hold]


def event(worker: Any, kind: str) -> dict[str, Any] | None:
    return next((values for values in worker.events if values.get("event") == kind), None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_the_writer_is_killed_then_everybody_and_two_go_on(cluster: Cluster, place: Path) -> None:
    cluster.found(3, first={"habit": habit(place, 5, "halfway")}, habit=habit(place, 5), pause=0.02)
    writer = cluster.until("somebody writes", lambda: next((w for w in cluster.workers if event(w, "writing")), None))
    [left] = parts(place)
    assert complete(place) == []
    writer.kill()
    cluster.until("the next one wrote", lambda: len(complete(place)) == 3)
    assert left not in parts(place), "what the dead one left is gone"
    for worker in cluster.alive():
        worker.kill()
    cluster.until("all are dead", lambda: all(worker.code is not None for worker in cluster.workers))
    found = newest(place)
    assert found is not None
    dead = list(cluster.workers)
    for worker in dead:
        worker.read()
    digests = {call["step"]: call["hash"] for worker in dead for call in worker.calls}
    again = cluster.found(2, habit=habit(place, 5), pause=0.02, settings={"resume": str(place)})
    cluster.until("two go on", lambda: all(len(worker.calls) > 12 for worker in again))
    for worker in again:
        begins = event(worker, "begins")
        assert begins is not None
        assert begins["at"] == found.name.step
        assert begins["digest"] == digests[found.name.step], "bit for bit"
        assert worker.calls[0]["step"] == found.name.step + 1
    cluster.until("it is saved again", lambda: complete(place)[0].step > found.name.step)
    hashes = [{call["step"]: call["hash"] for call in worker.calls} for worker in again]
    assert all(hashes[0][step] == hashes[1][step] for step in hashes[0].keys() & hashes[1].keys())
    assert not list(cluster.faults())


def test_a_writer_that_wakes_up_after_its_exclusion_replaces_nothing(cluster: Cluster, place: Path) -> None:
    first = {"habit": habit(place, 5, "at_the_last_moment")}
    cluster.found(3, first=first, habit=habit(place, 5), pause=0.02, settings={"exclude_after": 8.0})
    writer = cluster.until("it is stopped", lambda: next((w for w in cluster.workers if event(w, "publishing")), None))
    writer.killed = time.monotonic()
    cluster.until("the others have newer ones", lambda: len(complete(place)) == 3)
    old = event(writer, "publishing")
    assert old is not None
    newer = complete(place)
    writer.signal(signal.SIGCONT)
    cluster.until("it learns of it, and ends", lambda: writer.code is not None)
    assert not Path(old["directory"]).exists()
    found = newest(place)
    assert found is not None
    assert found.name >= newer[0]
    assert found.torn == ()
    assert f"{old['directory']}, " not in writer.output(), "it does not claim to have completed it"
    cluster.advanced()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", place], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs the right to mount: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_training_goes_on_while_the_disk_is_full(nursery: Nursery, tmp_path: Path, small_disk: Path) -> None:
    with Cluster(tmp_path, nursery, sizes=[300_000]) as cluster:
        cluster.found(2, habit=habit(small_disk, 5), pause=0.02, digest=False)
        cluster.until("twice there was no room", lambda: sum(w.output().count(_ERROR) for w in cluster.workers) > 1)
        output = "".join(worker.output() for worker in cluster.workers)
        assert "no space is left" in output.lower() or "no space left" in output.lower()
        assert f"{_ERROR}: make room there, or give save another directory" in output
        assert list(small_disk.iterdir()) == [] or complete(small_disk) == []
        cluster.advanced()
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        cluster.until("now there is room", lambda: complete(small_disk))
        assert newest(small_disk) is not None
        assert not list(cluster.faults())


def test_ftlib_run_resumes_a_job_whose_program_loads_nothing(nursery: Nursery, tmp_path: Path, place: Path) -> None:
    params = torch.randn(300)
    place.mkdir()
    write(place, {"step": 70, "custom": {"params": [params]}}, step=70, epoch=9)
    task = {"sizes": [300], "habit": habit(place, 5), "pause": 0.02}
    with LaunchedRun(tmp_path / "run", 2, "--resume", str(place), nursery=nursery, **task) as run:
        run.training(2)
        for worker in run.workers:
            begins = event(worker, "begins")
            assert begins is not None
            assert (begins["at"], begins["digest"]) == (70, _digest([params]))
            assert worker.calls[0]["step"] == 71
        run.until("it is saved again", lambda: complete(place)[0] > (70, 9))
    assert f"the job begins from {place}/step-000000000070-epoch-00000009" in run.said
