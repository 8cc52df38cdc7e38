"""A notice to the last worker with the state, under a real ``ftlib run`` and without one: it hands the state on first."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ftlib.checkpoints.names import complete
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.worker import PAUSE
from tests.processes.jobs.launched import LaunchedRun

pytestmark = pytest.mark.process

PATIENT = {"bucket_mb": 0.08, "exclude_after": 15.0, "handover": 400.0, "join_timeout": 300.0}
"""Whatever the machine is busy with: who is to come comes in time, and who is slow is not dead."""


def test_it_waits_for_those_that_the_launcher_starts(nursery: Nursery, tmp_path: Path) -> None:
    """Two of three are killed, and the third is told to leave before any of them is back."""
    run = LaunchedRun(tmp_path / "job", 3, nursery=nursery, sizes=[20_000, 300], pause=PAUSE, settings=PATIENT)
    try:
        run.training(3)
        last, *others = run.alive()
        for other in others:
            other.kill()
        run.until("it is alone", lambda: last.last.get("size") == 1)
        last.signal(signal.SIGTERM)
        step = last.last["step"]
        run.until("it has left", lambda: last.code == 0)
        run.until("others go on from there", lambda: [w for w in run.alive() if w.last.get("step", 0) > last.last["step"]])
        assert last.last["step"] > step, "it trained on meanwhile"
        assert "nobody is left to join" not in run.said, "the job was not founded anew"
    finally:
        run.close()


def test_a_lone_worker_does_not_wait(nursery: Nursery, tmp_path: Path) -> None:
    """Nobody else is started by its launcher: a wait would be as long as this test's."""
    run = LaunchedRun(tmp_path / "job", 1, nursery=nursery, sizes=[2_000], pause=PAUSE, settings=PATIENT)
    try:
        run.training(1)
        (only,) = run.alive()
        only.signal(signal.SIGTERM)
        run.until("it has left", lambda: only.code == 0)
        assert only.calls
    finally:
        run.close()


@pytest.mark.soak
def test_nobody_comes_without_a_launcher(nursery: Nursery, tmp_path: Path) -> None:
    """The other one was lost a moment ago, so it may be back: at the deadline this one leaves, with a checkpoint."""
    settings = {"bucket_mb": 0.08, "exclude_after": 15.0, "handover": 15.0}
    kept = tmp_path / "checkpoints"
    habit = ["tests.processes.programs.saver:FirstOnly", str(kept), 5]
    with Cluster(tmp_path, nursery, sizes=[2_000], pause=PAUSE, settings=settings, habit=habit) as cluster:
        last, other = cluster.found(2)
        cluster.training(2)
        cluster.until("one checkpoint is there", lambda: kept.is_dir() and complete(kept))
        other.kill()
        cluster.until("it is alone", lambda: last.last.get("size") == 1)
        last.signal(signal.SIGTERM)
        step = last.last["step"]
        cluster.until("it has left", lambda: last.code == 0)
        assert complete(kept)[0].step >= step > 5
