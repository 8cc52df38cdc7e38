"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of small models without workers yet."""
    with Cluster(tmp_path, sizes=[20_000, 300], settings={"bucket_mb": 0.08}) as cluster:
        yield cluster
