"""SIGSTOP and SIGTERM, and what a healthy step costs in messages."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.jobs.launched import LaunchedRun

pytestmark = pytest.mark.process

SOON = {"exclude_after": 6.0}
"""Where silence is what a test is about."""


def test_a_stopped_worker_never_acts_on_its_old_view(cluster: Cluster) -> None:
    """Without a supervisor it is voted out after ``exclude_after``; when it runs again it learns so."""
    cluster.found(4, settings=SOON)
    cluster.training(4)
    victim = cluster.workers[2]
    began = victim.signal(signal.SIGSTOP)
    victim.killed = began
    cluster.read()
    finished = len(victim.calls)
    cluster.training(3)
    victim.signal(signal.SIGCONT)
    cluster.until("the stopped worker ends", lambda: victim.code is not None)
    victim.read()
    assert victim.events[-1]["text"].startswith("Excluded: ")
    assert len(victim.calls) <= finished + 1, "at most the line that it was about to write when it was stopped"
    cluster.advanced()
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not verdict.violations


def test_a_stopped_worker_of_two_is_fenced_by_the_launcher(nursery: Nursery, tmp_path: Path) -> None:
    settings = {"exclude_after": 60.0, "fence_after": 0.03}  # silence alone would take longer than the test waits below
    with LaunchedRun(tmp_path, 2, nursery=nursery, sizes=[300], settings=settings) as run:
        run.training(2)
        victim, survivor = run.alive()
        victim.killed = victim.signal(signal.SIGSTOP)
        run.until("the other one goes on", lambda: survivor.last["size"] == 1)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, signal.SIGCONT)
        run.until("the stopped worker is gone", lambda: victim.code is not None)
        run.training(2)
        verdict = Verdict()
        verdict.check(run.workers)
        assert not verdict.violations


def test_sigterm_drains_one_then_all(cluster: Cluster) -> None:
    cluster.found(4)
    cluster.training(4)
    for worker in cluster.workers[:2]:  # the most senior one, then the next
        worker.signal(signal.SIGTERM)
        cluster.until("it ends", lambda worker=worker: worker.code is not None)
        assert worker.code == 0
        cluster.training()
    cluster.drain()
    assert [worker.code for worker in cluster.workers] == [0, 0, 0, 0]
    verdict = Verdict()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]


def test_a_healthy_step_causes_no_control_message(nursery: Nursery, tmp_path: Path) -> None:
    """As many messages while training as in the same time of rest, and only probes and digests."""
    with Cluster(tmp_path, nursery, sizes=[300], idle=2.0) as cluster:
        cluster.found(3)
        cluster.until("all have counted", lambda: all(_counted(worker.events) for worker in cluster.workers))
        # Acks that a busy machine had come late: whoever misses one asks others, who ask in its place, and answer.
        late = sum(
            count["sent"].get("PingRequest", 0) + count["sent"].get("Nack", 0)
            for worker in cluster.workers
            for count in _counted(worker.events)[1:]
        )
        for worker in cluster.workers:
            started, idle, busy = _counted(worker.events)
            assert busy["steps"] >= 200
            assert set(busy["sent"]) <= {"Ping", "Ack", "PingRequest", "Nack", "Gossip", "Knock", "Ticket", "Digest"}
            for before, count in ((started, idle), (idle, busy)):
                seconds = count["t"] - before["t"]
                probes = 2 * (seconds / 0.5 + 1) * 2 + seconds / 5 + 2  # pings, acks, to and from two peers; and digests
                assert sum(count["sent"].values()) <= probes + 4 * late, count


def _counted(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Before the rest, after it, and after the training; nothing until all three are there."""
    counts = [event for event in events if event.get("event") == "messages"]
    return counts if len(counts) == 3 else []
