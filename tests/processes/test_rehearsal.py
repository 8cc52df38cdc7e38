"""Jobs whose groups have an accelerator that behaves as badly as a GPU's: they go on as with Gloo alone, whatever goes wrong.

Every job trains with three workers, loses one, and gets another; each step is compared with a reference, at every worker.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.processes.test_observability import scrape

pytestmark = pytest.mark.process

ON = "go by accelerators"
OFF = "go by the CPU"


ISOLATED = "isolated:rehearsal"
either = pytest.mark.parametrize("rehearsal", ["rehearsal", pytest.param(ISOLATED, marks=pytest.mark.soak)], indirect=True)
"""For a test of what holds wherever communicators live."""


@pytest.fixture
def rehearsal(request: pytest.FixtureRequest) -> str:
    """The framework."""
    return str(getattr(request, "param", "rehearsal"))


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path, rehearsal: str) -> Iterator[Cluster]:
    settings = {"bucket_mb": 0.08, "framework": rehearsal}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=0.03, settings=settings) as cluster:
        yield cluster


def log(cluster: Cluster) -> str:
    """What all workers have logged."""
    return "".join(path.read_text() for path in sorted(cluster.directory.glob("*.out")))


def accelerated(cluster: Cluster, size: int, since: int = 0) -> None:
    """Wait until the newest call of all workers went by accelerators, with ``size`` members in an epoch after ``since``."""

    def they_work() -> bool:
        alive = cluster.alive()
        return len(alive) == size and all(
            len(worker.calls) > 1
            and worker.last["accelerated"] > worker.calls[-2]["accelerated"]
            and worker.last["size"] == size
            and worker.last["epoch"] > since
            for worker in alive
        )

    cluster.until("accelerators work", they_work)


def epoch(cluster: Cluster) -> int:
    """The newest that anybody has called in."""
    return max(worker.last["epoch"] for worker in cluster.alive())


def all_is_well(cluster: Cluster) -> None:
    cluster.drain()
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert verdict.steps >= 3


@either
def test_a_healthy_call_waits_for_the_device_once(cluster: Cluster, rehearsal: str) -> None:
    """By Gloo, and by accelerators; the look for inf and nan is included. Twice by accelerators that live elsewhere."""
    workers = cluster.found(3, environment={VARIABLE: "start_seconds=1"})
    accelerated(cluster, 3)
    since = max(worker.last["call"] for worker in workers)
    cluster.until("there is enough to judge", lambda: all(worker.last["call"] > since + 20 for worker in cluster.alive()))
    for worker in workers:
        for one, other in itertools.pairwise(worker.calls):
            if one["epoch"] == other["epoch"] and one["size"] == other["size"] == 3:
                assert other["call"] - one["call"] == 1
                twice = rehearsal == ISOLATED and other["accelerated"] > one["accelerated"]
                assert other["device_waits"] - one["device_waits"] == 1 + twice, (one, other)
    all_is_well(cluster)


@pytest.mark.parametrize("rehearsal", ["rehearsal", ISOLATED], indirect=True)
def test_killed_joined_and_left(cluster: Cluster) -> None:
    workers = cluster.found(3)
    cluster.training(3)
    accelerated(cluster, 3)
    workers[1].kill()
    accelerated(cluster, 2)
    since = epoch(cluster)
    cluster.join()
    accelerated(cluster, 3, since)
    workers[0].signal(signal.SIGTERM)
    cluster.until("it has left", lambda: workers[0].code is not None)
    assert workers[0].code == 0
    accelerated(cluster, 2)
    told = scrape(workers[2], cluster.secret)
    assert told["ftlib_accelerator_ready"] == 1
    starts, stops = told["ftlib_accelerator_starts_total"], told["ftlib_accelerator_stops_total"]
    assert starts == stops + 1 >= 4, "three views have gone"
    assert told["ftlib_accelerator_start_seconds_count"] >= 1
    assert min(told[f"ftlib_transport_calls_total{{transport={name}}}"] for name in ("gloo", "rehearsal")) > 0
    cluster.until(
        "what has gone is freed", lambda: scrape(workers[2], cluster.secret)["ftlib_accelerator_frees_total"] == stops
    )
    assert told["ftlib_accelerator_leaks_total"] == 0
    all_is_well(cluster)


@pytest.mark.parametrize(
    ("faults", "rehearsal"),
    [
        ("", "rehearsal"),
        ("error_at=40, rank=1, communicators=1", "rehearsal"),
        ("start_seconds=0.5, kernel_seconds=0.002", "rehearsal"),
        pytest.param("start_seconds=0.5, kernel_seconds=0.002", ISOLATED, marks=pytest.mark.soak),
    ],
    indirect=["rehearsal"],
)
def test_whole_steps(nursery: Nursery, tmp_path: Path, faults: str, rehearsal: str) -> None:
    """The calls within a unit go by what the commit of the unit before has agreed on."""
    task = {"program": "tests.processes.stepper:step", "sizes": [40_000, 300, 20_000], "pause": 0.03}
    settings = {"bucket_mb": 0.08, "framework": rehearsal}
    with Cluster(tmp_path, nursery, **task, settings=settings) as cluster:
        workers = cluster.found(3, environment={VARIABLE: faults})
        cluster.training(3)
        accelerated(cluster, 3)
        if "error" in faults:
            accelerated(cluster, 3, since=1)
        workers[1].kill()
        accelerated(cluster, 2)
        cluster.join(environment={VARIABLE: faults})
        cluster.training(3)
        all_is_well(cluster)


def isolated(faults: str, comes_back: bool) -> Any:
    """The same in processes of their own."""
    return pytest.param(faults, comes_back, ISOLATED, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("faults", "comes_back", "rehearsal"),
    [
        ("start_seconds=1", True, "rehearsal"),
        ("start=hangs, rank=1", False, "rehearsal"),
        ("start=fails", False, "rehearsal"),
        ("start=fails, communicators=1", True, "rehearsal"),
        ("launch_seconds=0.01, kernel_seconds=0.01", True, "rehearsal"),
        ("silent=1", True, "rehearsal"),
        ("error_at=3, rank=1, communicators=2", True, "rehearsal"),
        ("stop=hangs", True, "rehearsal"),
        ("free=hangs", True, "rehearsal"),
        isolated("start_seconds=1", True),
        isolated("start=hangs, rank=1", False),
        isolated("start=fails", False),
        isolated("launch_seconds=0.01, kernel_seconds=0.01", True),
        isolated("silent=1", True),
        isolated("stop=hangs, free=hangs, stuck=1", True),
    ],
    indirect=["rehearsal"],
)
def test_whatever_goes_wrong_with_it(cluster: Cluster, faults: str, comes_back: bool) -> None:
    workers = cluster.found(3, environment={VARIABLE: faults})
    cluster.training(3)
    workers[2].kill()
    cluster.training(2)
    cluster.join(environment={VARIABLE: faults})
    cluster.training(3)
    if comes_back:
        if "start_seconds" in faults:
            accelerated(cluster, 3)
        workers[1].kill()
        accelerated(cluster, 2)
        if "start_seconds" in faults:
            assert log(cluster).count(OFF) >= 2, "until the accelerators of a new view have started, calls go by Gloo"
    else:
        assert ON not in log(cluster)
    all_is_well(cluster)


def test_kernels_that_do_not_end_stop_their_worker_alone(cluster: Cluster) -> None:
    """Nothing says what they will write to, so the process cannot go on; it says so, and the others train without it."""
    workers = cluster.found(3, environment={VARIABLE: "error_at=3, stuck=1, rank=0, communicators=1"})
    cluster.until("one has ended", lambda: any(worker.code is not None for worker in workers))
    assert "do not end on the device" in log(cluster)
    assert [worker.code for worker in workers if worker.code is not None] != [0]
    cluster.training(2)
    cluster.drain()
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not verdict.violations
