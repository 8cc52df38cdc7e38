"""Processes that train locally between averages: a joiner comes in the middle of a round, with one donor's private state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(nursery: Nursery, tmp_path: Path) -> Iterator[Cluster]:
    """Without workers yet. Their state has 1.6 MB shared and 2.4 MB private."""
    given = {"every": 60, "width": 448, "pace": 0.005}
    with Cluster(tmp_path, nursery, program="tests.processes.programs.locally:train", given=given) as cluster:
        yield cluster


def came(worker: Worker) -> dict[str, Any] | None:
    return next((event for event in worker.events if event["event"] == "came"), None)


def borders(worker: Worker) -> set[str]:
    worker.read()
    return {event["private"] for event in worker.events if event["event"] == "border"}


def level(*workers: Worker) -> int:
    """How many averages all of them know, which must have led to the same."""
    known = [{call["step"]: call["hash"] for call in worker.calls} for worker in workers]
    common = set.intersection(*map(set, known))
    assert all(len({each[step] for each in known}) == 1 for step in common)
    return len(common)


@pytest.mark.parametrize("dies", [pytest.param(False, marks=pytest.mark.soak), True], ids=["", "the-donor-dies"])
def test_a_joiner_comes_in_the_middle_of_a_round(cluster: Cluster, *, dies: bool) -> None:
    given = {"every": 60, "width": 448, "pace": 0.005, "dies": dies}
    founders = cluster.found(3, given=given)
    cluster.until("they average", lambda: all(worker.calls for worker in founders))
    joiner = cluster.join()
    cluster.until("it has the state", lambda: came(joiner))
    dead = [worker for worker in founders if any(event["event"] == "dies" for event in worker.events)]
    assert len(dead) == dies
    got = came(joiner)
    assert got is not None
    assert got["came"]
    left = [worker for worker in founders if worker not in dead]
    cluster.until("its donor tells", lambda: any(got["private"] in borders(worker) for worker in left))
    assert len([worker for worker in left if got["private"] in borders(worker)]) == 1, "all of it from one, of one moment"
    assert not any(got["private"] in borders(worker) for worker in dead)
    assert got["shared"] in {call["hash"] for worker in left for call in worker.calls}
    cluster.until("it averages with them", lambda: len(joiner.calls) > 1)
    assert level(joiner, *left) > 0
    assert joiner.calls[0]["size"] == 1 + len(left)
