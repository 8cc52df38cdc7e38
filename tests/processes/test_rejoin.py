"""A worker that was away for too long joins again in the same process, as a new member (setting ``rejoin``)."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .cluster import Cluster
from .verdict import Verdict

pytestmark = pytest.mark.process


def test_a_stopped_worker_joins_again_and_again(tmp_path: Path) -> None:
    """The most senior one: the first time the founder's own address is bound again, and nothing may be founded there."""
    settings = {"bucket_mb": 0.08, "exclude_after": 1.0, "rejoin": True}
    with Cluster(tmp_path, sizes=[20_000, 300], settings=settings) as cluster:
        cluster.found(3)
        cluster.training(3)
        victim = next(worker for worker in cluster.workers if worker.last["rank"] == 0)
        for lifetime in (1, 2):
            victim.killed = victim.signal(signal.SIGSTOP)  # so that nobody counts on it
            cluster.training(2, 10.0)
            continued = victim.signal(signal.SIGCONT)
            victim.killed = 0.0
            cluster.training(3, 10.0)
            first = next(line for line in victim.calls if line["lifetime"] == lifetime)
            assert first["end"] - continued < 5.0
            print(f"back after {first['end'] - continued:.2f} s")
            assert first["who"] >> victim.task.slot & 1 == 0, "what it had computed on old weights does not count"
        cluster.advanced()
        verdict = Verdict()
        verdict.check(cluster.workers)
        assert not [*verdict.violations, *cluster.faults()]
        assert victim.output().count("ftlib: rejoined as ") == 2
        assert len({worker.last["epoch"] for worker in cluster.workers}) == 1
