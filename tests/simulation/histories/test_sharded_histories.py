"""Replicas of several processes in whole histories: real votes and views, with cohorts, and the real data plane of each shard.

Processes die, hang, leave and are cut off one by one, a replica comes and goes as a whole, and its launcher ends what is left
of it. ``test_replica_histories`` plays the same rules alone, without agents.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from ftlib.frameworks import background
from tests.harness.basics import around
from tests.simulation.data_plane import (
    POLICIES_OF_REPLICAS,
    Trainers,
    accelerated,
    interrupted_sharded,
    mixing_sharded,
    play,
    sharded,
    sharded_history,
)
from tests.simulation.data_plane.peers.recovery import SimulatedRecovery

from .volume import mostly_soak

SEEDS = 25
"""For each policy."""
SOAK = 2500
CHUNK = 50
DEVICES = (1026, 2004, 2022, 2040)
"""Seeds whose processes have accelerators: none went on under both policies while all shards had one group."""
NEEDED = {"fits", "loaded", "replicas lost", "state lost"}
"""What has to have happened in so many histories, or they would show nothing."""
INTERRUPTED, INTERRUPTED_SOAK = 6, 1000
"""Of programs that leave calls by exceptions: seeds for each policy."""
MIXED, MIXED_SOAK = 8, 1000
"""Of programs that make calls of many kinds: seeds for each policy."""
NEEDED_MIXED = NEEDED | {"declined", "followed", "opened"}
FOLLOWING = (
    (2019, ""),
    (2030, "storage"),
    pytest.param(2041, "", marks=pytest.mark.soak),
    pytest.param(2033, "storage", marks=pytest.mark.soak),
)
"""Seeds and policies of such programs whose joiners come in shard by shard, if they follow: the settings do not allow it."""


def _play(make: Callable[[int], Trainers], seed: int, policy: str) -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened.

    Played anew: with a planted bug it goes another way.
    """
    jobs = make(seed)
    scenario, shards = sharded_history(seed, policy)
    result = play(scenario, jobs=jobs, shards=shards)
    wrong = "" if result.good else f"{shards} shards, {jobs.habits}\n{result.scenario}\n{result}"
    return wrong, Counter({name: count for name, count in jobs.promises.counts.items() if count})


@functools.cache
def played(seed: int, policy: str) -> tuple[str, Counter[str]]:
    """As ``_play``, with averages alone."""
    return _play(sharded, seed, policy)


@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("seed", mostly_soak(range(SEEDS), 10))
def test_all_shards_of_a_step_are_over_the_same_replicas(seed: int, policy: str) -> None:
    wrong, _ = played(seed, policy)
    assert not wrong


def test_founders_of_which_one_shard_draws_before_the_other_deal_alike() -> None:
    """Replicas die in the views before the first call, and in one shard nobody has registered a sampler until then."""
    wrong, _ = played(2077, "")
    assert not wrong


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
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


@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("seed", mostly_soak(range(INTERRUPTED), 3))
def test_so_are_those_of_programs_that_leave_a_call_and_make_it_again(seed: int, policy: str) -> None:
    """While they wait for their mates, which may have the call's result then."""
    wrong, happened = _play(interrupted_sharded, seed, policy)
    assert not wrong
    assert happened["interrupted"] or not happened["fits"], happened


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("first", range(INTERRUPTED, INTERRUPTED + INTERRUPTED_SOAK, CHUNK))
def test_more_histories_with_interrupts(first: int, policy: str) -> None:
    bad = [wrong for seed in range(first, first + CHUNK) if (wrong := _play(interrupted_sharded, seed, policy)[0])]
    assert not bad, "\n".join(bad)


@functools.cache
def played_mixed(seed: int, policy: str) -> tuple[str, Counter[str]]:
    """As ``_play``, with programs that make calls of many kinds."""
    return _play(mixing_sharded, seed, policy)


@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("seed", range(MIXED))
def test_so_are_those_of_programs_of_many_kinds_of_calls(seed: int, policy: str) -> None:
    wrong, _ = played_mixed(seed, policy)
    assert not wrong


@pytest.mark.parametrize(("seed", "policy"), FOLLOWING)
def test_joiners_that_follow_come_in_shard_by_shard(seed: int, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: why ``recovery`` is ``wait`` for replicas of several processes."""
    with monkeypatch.context() as patch:

        @around(patch, SimulatedRecovery, "__init__")
        def follow(honest: Any, self: SimulatedRecovery, process: Any, **_more: Any) -> None:
            honest(self, process, follows=process.jobs.habits.follows)

        wrong, _ = _play(mixing_sharded, seed, policy)
    assert " over [" in wrong and ", its mate " in wrong
    wrong, _ = _play(mixing_sharded, seed, policy)
    assert not wrong


@pytest.mark.soak
def test_the_histories_of_many_kinds_have_everything() -> None:
    happened: Counter[str] = Counter()
    for policy in POLICIES_OF_REPLICAS:
        for seed in range(MIXED):
            happened += played_mixed(seed, policy)[1]
    assert set(happened) >= NEEDED_MIXED, happened


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("first", range(MIXED, MIXED + MIXED_SOAK, CHUNK))
def test_more_histories_of_many_kinds(first: int, policy: str) -> None:
    bad = [wrong for seed in range(first, first + CHUNK) if (wrong := played_mixed(seed, policy)[0])]
    assert not bad, "\n".join(bad)


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SOAK, CHUNK))
def test_more_histories(first: int, policy: str) -> None:
    bad = [wrong for seed in range(first, first + CHUNK) if (wrong := played(seed, policy)[0])]
    assert not bad, "\n".join(bad)


@functools.cache
def on_devices(seed: int, policy: str) -> tuple[str, Counter[str]]:
    """As ``_play``, where each shard's group has accelerators, most of them with faults."""
    return _play(accelerated, seed, policy)


@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("seed", DEVICES)
def test_each_shard_has_devices_of_its_own(seed: int, policy: str) -> None:
    wrong, _ = on_devices(seed, policy)
    assert not wrong


@pytest.mark.soak
def test_the_histories_with_devices_have_everything() -> None:
    happened: Counter[str] = Counter()
    for seed in DEVICES:
        happened += on_devices(seed, "")[1] + on_devices(seed, "storage")[1]
    assert set(happened) >= {"accelerated", "fits", "freed", "loaded"}, happened


def test_all_leave_within_milliseconds_of_a_change() -> None:
    """Whoever is left tells of that change, which had many members, in a view of its own."""
    wrong, _ = on_devices(2224, "")
    assert not wrong


def test_a_change_is_ordered_while_the_group_before_is_dropped() -> None:
    """What still starts on the device then is not of any call, whether it has been stopped or not."""
    wrong, _ = on_devices(3000, "")
    assert not wrong


def test_who_has_lost_a_mate_stops_its_device_in_simulated_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "start_task", lambda name, _function: pytest.fail(f"{name} would run on a real thread"))
    wrong, _ = on_devices(2271, "storage")
    assert not wrong


@pytest.mark.soak
@pytest.mark.parametrize("policy", POLICIES_OF_REPLICAS)
@pytest.mark.parametrize("first", range(1000, 1000 + SOAK, CHUNK))
def test_more_histories_with_devices(first: int, policy: str) -> None:
    bad = [wrong for seed in range(first, first + CHUNK) if (wrong := on_devices(seed, policy)[0])]
    assert not bad, "\n".join(bad)
