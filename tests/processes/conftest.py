"""Fixtures of the process tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster
from .stage import Stage


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of small models without workers yet."""
    with Cluster(tmp_path, sizes=[20_000, 300], settings={"bucket_mb": 0.08}) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Where actors come from."""
    stage = Stage(tmp_path_factory.mktemp("stage"))
    yield stage
    stage.close()


@pytest.fixture
def stage(zygote: Stage) -> Iterator[Stage]:
    """A stage without players; whatever a test did, no process may have been ended by an abort or a fault of memory."""
    zygote.clear()
    yield zygote
    aborted = [player for player in zygote.players if player.code in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)]
    zygote.clear()
    assert not aborted, "\n".join(player.output() for player in aborted)
