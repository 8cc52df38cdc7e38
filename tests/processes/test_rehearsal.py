"""Jobs whose groups have an accelerator that behaves as badly as a GPU's: kills, joins and leavers go on as with Gloo alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    settings = {"bucket_mb": 0.08, "framework": "rehearsal"}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=0.03, settings=settings) as cluster:
        yield cluster


def test_killed_joined_and_left(cluster: Cluster) -> None:
    workers = cluster.found(3)
    cluster.training(3)
    workers[1].kill()
    cluster.training(2)
    cluster.join()
    cluster.training(3)
    workers[0].signal(signal.SIGTERM)
    cluster.until("it has left", lambda: workers[0].code is not None)
    assert workers[0].code == 0
    cluster.training(2)
    cluster.drain()
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert verdict.steps > 10
