"""A worker that takes far longer for a step than the others, with a deadline: they go on, and it has what they have."""

from __future__ import annotations

import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from ftlib.core.backup.pattern import WINDOW
from tests.harness.cluster import Cluster, Worker
from tests.harness.nursery import Nursery

pytestmark = pytest.mark.process

REST, SLOW, DEADLINE = 0.01, 0.2, 0.1


def late(worker: Worker) -> list[int]:
    """Steps after which it found that others had been taken without it."""
    steps = [line["step"] for line in worker.calls]
    return [after for before, after in pairwise(steps) if after > before + 1]


def test_a_slow_worker_is_not_waited_for(nursery: Nursery, tmp_path: Path) -> None:
    """Through the kill of another one, and until it is told to leave."""
    with Cluster(
        tmp_path,
        nursery,
        program="tests.processes.programs.learner:learn",
        sizes=[5000, 300],
        given={"rest": REST},
        settings={"straggler_deadline": DEADLINE},
    ) as cluster:
        slow, first, second, third = cluster.found(4, first={"given": {"rest": SLOW}})
        cluster.until("the call pattern is known", lambda: len(slow.calls) > WINDOW, 60.0)
        cluster.until("it is late", lambda: len(late(slow)) > 3)
        third.kill()
        cluster.until("the others go on", lambda: first.last.get("size") == second.last.get("size") == 2 + 1)
        count = len(late(slow))
        cluster.until("it is late again", lambda: len(late(slow)) > count + 3)
        slow.signal(signal.SIGTERM)
        cluster.until("it leaves", lambda: slow.code is not None)
        assert slow.code == 0
        cluster.until("the others go on", lambda: first.last.get("size") == second.last.get("size") == 2)
        cluster.advanced()
        found: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for worker in (slow, first, second):
            for line in worker.calls:
                found[line["step"]].add((line["hash"], line["who"]))
        assert all(len(values) == 1 for values in found.values()), "alike after every step, down to the bit"
        assert not list(cluster.faults())
        others = [line for worker in (first, second, third) for line in worker.calls]  # any may be late once on a busy machine
        without = {line["step"] for line in others if not line["who"] >> slow.task.slot & 1}
        made = {line["step"] for line in slow.calls}
        missed = set(range(min(made), max(made))) - made
        assert len(missed) > 7 and missed <= without, "steps that were taken without it"
        steps = sorted({line["step"] for line in others})
        assert steps == list(range(steps[0], steps[-1] + 1)), "none was lost"
