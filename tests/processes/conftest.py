"""Fixtures of the process tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery
from tests.harness.worker import PAUSE
from tests.processes.stage.stage import Stage

FRAMED = ("kills", "hangs", "joining", "leaving", "stragglers", "execute", "checkpoints")
"""Modules whose tests hold for every framework."""
QUICK = (
    "test_down_to_one_and_back",
    "test_all_at_once",
    "test_joiner_has_what_the_others_have",
)
"""Tests that ``make test`` runs with each; with others than the usual one ``make soak`` runs the rest."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of these modules run once with each framework, by the fixture below."""
    if metafunc.module.__name__.rpartition(".test_")[2] in FRAMED:
        marks = [] if metafunc.function.__name__ in QUICK else [pytest.mark.soak]
        others = [pytest.param(name, marks=marks) for name in ("isolated:gloo", "rehearsal")]
        others += [pytest.param("isolated:rehearsal", marks=pytest.mark.soak)]
        metafunc.parametrize("framework", ["gloo", *others], indirect=True)


@pytest.fixture(autouse=True)
def framework(request: pytest.FixtureRequest, nursery: Nursery) -> Iterator[str]:
    """That of all workers that do not choose one."""
    name = getattr(request, "param", "")
    nursery.settle(**({"framework": name} if name else {}))
    yield name
    nursery.settle()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """Where models of the ``cluster`` are."""
    found: str = getattr(request, "param", "cpu")
    if found != "cpu" and "rehearsal" in request.getfixturevalue("framework"):
        pytest.skip("the rehearsal takes tensors of the CPU for a GPU's")
    return found


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path, device: str) -> Iterator[Cluster]:
    """A cluster of small models without workers yet."""
    task = {"sizes": [20_000, 300], "pause": PAUSE, "device": device}
    with Cluster(tmp_path, nursery, settings={"bucket_mb": 0.08}, **task) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def theatre(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where actors come from."""
    stage = Stage(tmp_path_factory.mktemp("stage"), nursery)
    yield stage
    stage.clear()


@pytest.fixture
def stage(theatre: Stage) -> Iterator[Stage]:
    """A stage without players; whatever a test did, no process may have been ended by an abort or a fault of memory."""
    theatre.clear()
    yield theatre
    aborted = [player for player in theatre.players if player.code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)]
    theatre.clear()
    assert not aborted, "\n".join(player.output() for player in aborted)
