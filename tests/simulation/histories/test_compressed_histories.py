"""Compressed averages in replicas of several processes: what a process owes is its own shard's, in that shard's results alone.

Each shard's sums have the contributions of its own members. A call that has no result in one shard has none in the others, so
nobody owes anything for it.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ftlib.core.calls.call import Call, CallOutcome, Results
from ftlib.core.engine.engine import Engine
from ftlib.core.tensors.compression.memory import CallMemory
from tests.harness.basics import around
from tests.simulation.data_plane import (
    POLICIES_OF_REPLICAS,
    Trainers,
    compressing_sharded,
    declining,
    mixing,
    play,
    sharded_history,
)
from tests.simulation.planted.test_mixed_calls import owes_for_calls_that_failed, owes_what_was_sent

SEEDS = (1, 3, 5)
"""For each policy."""
ODD: tuple[tuple[Callable[[int], Trainers], int, str], ...] = (
    (declining, 2012, ""),  # the checker took what the processes of another shard had to send for a part of this shard's sums
    (declining, 2012, "storage"),
    (declining, 1010, "storage"),
    (declining, 2060, ""),
    (declining, 2060, "storage"),  # joiners followed the others' calls, as only replicas of one process do
    (mixing, 2047, ""),
)
MOST = 40
"""Histories in which a bug has to show."""
SOAK = 1000
CHUNK = 50


def _play(make: Callable[[int], Trainers], seed: int, policy: str) -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened."""
    jobs = make(seed)
    scenario, shards = sharded_history(seed, policy)
    result = play(scenario, jobs=jobs, shards=shards)
    return "" if result.good else f"{shards} shards, {jobs.habits}\n{result.scenario}\n{result}", Counter(jobs.promises.counts)


@functools.cache
def played(seed: int, policy: str) -> tuple[str, Counter[str]]:
    """As ``_play``, of processes that compress."""
    return _play(compressing_sharded, seed, policy)


@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_owed_is_right_in_each_shard(seed: int, policy: str) -> None:
    wrong, _ = played(seed, policy)
    assert not wrong


@pytest.mark.parametrize(("make", "seed", "policy"), ODD)
def test_what_went_wrong_once(make: Callable[[int], Trainers], seed: int, policy: str) -> None:
    wrong, _ = _play(make, seed, policy)
    assert not wrong


def test_the_histories_have_everything() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        for policy in POLICIES_OF_REPLICAS:
            happened += played(seed, policy)[1]
    assert happened["finished"] > 150
    assert happened["declined"] > 20
    assert happened["fits"] > 80
    assert happened["loaded"]


Patch = pytest.MonkeyPatch


def owes_nothing(patch: Patch) -> None:
    """What a call did not send is dropped as it finishes."""

    @around(patch, CallMemory, "finished")
    def finished(honest: Any, self: CallMemory, *arguments: Any, **more: Any) -> None:
        honest(self, *arguments, **more)
        self.forget()


def owes_where_a_mate_has_no_result(patch: Patch) -> None:
    """A process owes what it did not send to a call that has no result, as it has none in a mate's shard."""

    @around(patch, Engine, "_finished")
    def finished(honest: Any, self: Engine, call: Call, results: Results) -> None:
        honest(self, call, results)
        if results.layout.compression is not None and CallOutcome.INTACT < results.outcome < CallOutcome.DECLINED_HERE:
            self._pool.staging(results.layout).memory.finished(results.number, results.view_id, checked=True)


BUGS: dict[Callable[[Patch], None], int] = {
    owes_what_was_sent: 1,
    owes_nothing: 1,
    owes_for_calls_that_failed: 1,
    owes_where_a_mate_has_no_result: 1,
}
"""With the first history that showed it."""


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    seeds = range(BUGS[plant], BUGS[plant] + MOST)
    found = next(((seed, wrong) for seed in seeds if (wrong := _play(compressing_sharded, seed, "storage")[0])), None)
    assert found is not None, f"{plant.__doc__} Nobody noticed within {MOST} histories."
    print(plant.__name__, found[0])
    assert re.search(r" finds \S+ of ", found[1]), found[1]


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_more_histories(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        for policy in POLICIES_OF_REPLICAS:
            wrong, _ = _play(compressing_sharded, seed, policy)
            if wrong:
                bad.append(f"seed {seed} {policy}: {wrong}")
    assert not bad, "\n".join(bad)
