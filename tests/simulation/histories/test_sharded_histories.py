"""Replicas of several processes in whole histories: real votes and views, with cohorts, and the real data plane of each shard.

Processes die, hang, leave and are cut off one by one, a replica comes and goes as a whole, and its launcher ends what is left
of it. ``test_replica_histories`` plays the same rules alone, without agents.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from consensus.simulation.script.scenario import POLICIES
from tests.simulation.data_plane import play, sharded, sharded_history

SEEDS = 25
"""For each policy."""
SOAK = 2500
CHUNK = 50
NEEDED = {"fits", "loaded", "replicas lost", "state lost"}
"""What has to have happened in so many histories, or they would show nothing."""


@functools.cache
def played(seed: int, policy: str) -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened."""
    jobs = sharded(seed)
    scenario, shards = sharded_history(seed, policy)
    result = play(scenario, jobs=jobs, shards=shards)
    wrong = "" if result.good else f"{shards} shards: {result.scenario}\n{result}"
    return wrong, Counter({name: count for name, count in jobs.promises.counts.items() if count})


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_all_shards_of_a_step_are_over_the_same_replicas(seed: int, policy: str) -> None:
    wrong, _ = played(seed, policy)
    assert not wrong


def test_founders_of_which_one_shard_draws_before_the_other_deal_alike() -> None:
    """Replicas die in the views before the first call, and in one shard nobody has registered a sampler until then."""
    wrong, _ = played(2077, "")
    assert not wrong


@pytest.mark.parametrize("policy", POLICIES)
def test_the_histories_have_everything(policy: str) -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += played(seed, policy)[1]
    assert set(happened) >= NEEDED, happened


def test_every_process_of_a_replica_starts() -> None:
    """Through one that has started: a start through nobody would not take place, and the rest of the replica wait for ever."""
    for seed in range(500):
        there: set[str] = set()
        for event in sharded_history(seed, "storage")[0].events:
            if event.command == "start":
                name, *via = event.words
                assert any(each.startswith("m") or each in there for each in via), (seed, name)
                there.add(name)


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SOAK, CHUNK))
def test_more_histories(first: int, policy: str) -> None:
    bad = [wrong for seed in range(first, first + CHUNK) if (wrong := played(seed, policy)[0])]
    assert not bad, "\n".join(bad)
