"""A worker that was away for too long joins again in the same process, as a new member (setting ``rejoin``)."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from ftlib import FTLib
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.harness.worker import Lines
from tests.processes.jobs.launched import LaunchedRun

pytestmark = pytest.mark.process


def test_a_stopped_worker_joins_again_and_again(nursery: Nursery, tmp_path: Path) -> None:
    """The most senior one: the first time the founder's own address is bound again, and nothing may be founded there."""
    settings = {"bucket_mb": 0.08, "exclude_after": 6.0, "rejoin": True}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], settings=settings) as cluster:
        cluster.found(3)
        cluster.training(3)
        victim = next(worker for worker in cluster.workers if worker.last["rank"] == 0)
        for lifetime in (1, 2):
            victim.killed = victim.signal(signal.SIGSTOP)  # so that nobody counts on it
            cluster.training(2)
            victim.signal(signal.SIGCONT)
            victim.killed = 0.0
            cluster.training(3)  # on an idle machine after one to two seconds
            first = next(line for line in victim.calls if line["lifetime"] == lifetime)
            assert first["who"] >> victim.task.slot & 1 == 0, "what it had computed on old weights does not count"
        cluster.advanced()
        verdict = Verdict()
        verdict.check(cluster.workers)
        assert not [*verdict.violations, *cluster.faults()]
        assert victim.output().count("ftlib: rejoined as ") == 2
        assert len({worker.last["epoch"] for worker in cluster.workers}) == 1


@pytest.mark.soak
def test_under_the_launcher_it_stays_the_same_process(nursery: Nursery, tmp_path: Path) -> None:
    """A worker that hung gives itself up and joins again: the launcher restarts nothing, and can still fence it."""
    settings = {"exclude_after": 8.0, "stall_timeout": 6.0, "rejoin": True}
    habit = ["tests.processes.membership.test_rejoin:Pause"]
    with LaunchedRun(tmp_path, 2, nursery=nursery, sizes=[300], settings=settings, habit=habit) as run:
        run.training(2)
        other, worker = run.workers
        worker.signal(signal.SIGUSR2)
        run.until("the other one goes on", lambda: other.last["size"] == 1)
        worker.signal(signal.SIGUSR2)
        run.until("it has joined again", lambda: worker.last.get("lifetime") == 1)
        run.training(2)
        run.until("it said so", lambda: announced(tmp_path, worker.pid) == 2)
        assert len(run.workers) == 2
        worker.killed = worker.signal(signal.SIGSTOP)
        run.until("it is fenced as the member that it is now", lambda: worker.code is not None)
        verdict = Verdict()
        verdict.check(run.workers)
        assert not verdict.violations


def announced(directory: Path, pid: int) -> int:
    """As how many members a process has announced itself to the launcher."""
    whole, _, _ = (directory / "events.jsonl").read_text().rpartition("\n")
    events = [json.loads(line) for line in whole.splitlines()]
    return len({event["member"] for event in events if event["event"] == "announced" and event["pid"] == pid})


class Pause:
    """A habit. SIGUSR2: the training thread sleeps before its next call, until the same signal comes again."""

    def __init__(self, _ft: FTLib, _lines: Lines) -> None:
        self._asked = False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_: object) -> None:
        self._asked = not self._asked

    def __call__(self) -> None:
        """Before a call."""
        while self._asked:
            time.sleep(0.01)  # the program hangs
