"""Fixtures of the process tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.nursery import Nursery

from .stage import Stage


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of small models without workers yet."""
    # The pause leaves the processor to those that start, and to other tests: a step costs each worker two milliseconds of it.
    with Cluster(tmp_path, nursery, sizes=[20_000, 300], pause=0.03, settings={"bucket_mb": 0.08}) as cluster:
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
