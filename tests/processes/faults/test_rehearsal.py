"""Jobs whose groups have an accelerator that behaves as badly as a GPU's: they go on as with Gloo alone, whatever goes wrong.

Every job trains with three workers, loses one, and gets another; each step is compared with a reference, at every worker. The
accelerator is the rehearsal's, or NCCL's with a library whose faults are the rehearsal's, told in NCCL's words.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftlib.frameworks.accelerators.rehearsal.faults import VARIABLE
from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.verdict import Verdict
from tests.harness.worker import PAUSE
from tests.processes.watching.test_observability import scrape

pytestmark = pytest.mark.process

ON = "go by accelerators"
OFF = "go by the CPU"


NCCL = "tests.frameworks.nccl.fake:FakeNcclFramework"
ISOLATED = "isolated:rehearsal"
REST = [pytest.param(NCCL, marks=pytest.mark.soak), pytest.param(ISOLATED, marks=pytest.mark.soak)]
MOST = pytest.mark.parametrize("framework", ["rehearsal", *REST])
"""The others only where there is time."""


@pytest.fixture(params=["rehearsal", NCCL, ISOLATED])
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path, framework: str) -> Iterator[Cluster]:
    settings = {"bucket_mb": 0.08, "framework": framework}
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=PAUSE, settings=settings) as cluster:
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


def _name(framework: str) -> str:
    """Of its accelerator."""
    return "nccl" if framework == NCCL else "rehearsal"


def all_is_well(cluster: Cluster) -> None:
    cluster.drain()
    verdict = Verdict()
    cluster.read()
    verdict.check(cluster.workers)
    assert not [*verdict.violations, *cluster.faults()]
    assert verdict.steps >= 3


@MOST
def test_a_healthy_call_waits_for_the_device_once(cluster: Cluster, framework: str) -> None:
    """By Gloo, and by accelerators; the look for inf and nan is included. Twice by accelerators that live elsewhere."""
    workers = cluster.found(3, environment={VARIABLE: "start_seconds=1"})
    accelerated(cluster, 3)
    since = max(worker.last["call"] for worker in workers)
    cluster.until("there is enough to judge", lambda: all(worker.last["call"] > since + 20 for worker in cluster.alive()))
    for worker in workers:
        for one, other in itertools.pairwise(worker.calls):
            if one["epoch"] == other["epoch"] and one["size"] == other["size"] == 3:
                assert other["call"] - one["call"] == 1
                twice = framework == ISOLATED and other["accelerated"] > one["accelerated"]
                assert other["device_waits"] - one["device_waits"] == 1 + twice, (one, other)
    all_is_well(cluster)


def test_killed_joined_and_left(cluster: Cluster, framework: str) -> None:
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
    assert told[f"ftlib_transport_calls_total{{transport={_name(framework)}}}"] > 0
    cluster.until(
        "what has gone is freed", lambda: scrape(workers[2], cluster.secret)["ftlib_accelerator_frees_total"] == stops
    )
    assert told["ftlib_accelerator_leaks_total"] == 0
    all_is_well(cluster)


@MOST
@pytest.mark.parametrize(
    "faults",
    [
        "",
        "error_at=40, rank=1, communicators=1",
        pytest.param("start_seconds=0.5, kernel_seconds=0.002", marks=pytest.mark.soak),
    ],
)
def test_whole_steps(nursery: Nursery, tmp_path: Path, framework: str, faults: str) -> None:
    """The calls within a unit go by what the commit of the unit before has agreed on."""
    task = {"program": "tests.processes.programs.stepper:step", "sizes": [40_000, 300, 20_000], "pause": PAUSE}
    settings = {"bucket_mb": 0.08, "framework": framework}
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


FAULTS = [
    ("start_seconds=1", True),
    ("start=hangs, rank=1", False),
    ("start=fails", False),
    ("start=fails, communicators=1", True),
    ("launch_seconds=0.01, kernel_seconds=0.01", True),
    ("silent=1", True),
    ("error_at=3, rank=1, communicators=2", True),
    ("stop=hangs", True),
    ("free=hangs", True),
]
"""With whether accelerators come back."""
FAULTS_OF_NCCL = [
    pytest.param(NCCL, *row, marks=[] if row[0].startswith(("error_at", "start=fails, comm")) else pytest.mark.soak)
    for row in FAULTS
]
FAULTS_OF_ISOLATED = [
    pytest.param(ISOLATED, *row, marks=pytest.mark.soak)
    for row in [*(row for row in FAULTS if "communicators" not in row[0]), ("stop=hangs, free=hangs, stuck=1", True)]
]
"""But for those of a process's first communicators: here each has a process of its own."""


@pytest.mark.parametrize(
    ("framework", "faults", "comes_back"), [*(("rehearsal", *row) for row in FAULTS), *FAULTS_OF_NCCL, *FAULTS_OF_ISOLATED]
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


@pytest.mark.parametrize("framework", ["rehearsal", pytest.param(NCCL, marks=pytest.mark.soak)])
def test_kernels_that_do_not_end_stop_their_worker_alone(cluster: Cluster) -> None:
    """Nothing says what they will write to, so the process cannot go on; it says so, and the others train without it.

    An accelerator in a process of its own is killed instead.
    """
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
