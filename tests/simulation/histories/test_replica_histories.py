"""Replicas that shard inside, in random histories: no average whose shards are over different replicas, and none is lost.

``tests/simulation/replicas/history.py`` says what is played, with the product's own rules (``ftlib/core/replicas``). Then the
rules are broken one by one: each has to be missed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.replicas.history import History, Rules, Wrong

SEEDS = 150
SOAK = 5000
BROKEN = (
    Rules(agrees=False),
    Rules(agrees_to_adopt=False),
    Rules(by_view=False),
    Rules(whole_only=False),
    Rules(own_shard=False),
)
NEEDED = {"deaths", "broken", "started", "views", "keepers", "adopted", "loads", "lost"}
"""What has to have happened in so many histories, or they would show nothing."""


def played(seeds: range) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in seeds:
        try:
            happened += History(seed).play().happened
        except Wrong as error:
            raise AssertionError(f"history {seed}: {error}") from None
    return happened


def test_all_shards_of_a_call_are_over_the_same_replicas() -> None:
    happened = played(range(SEEDS))
    assert set(happened) >= NEEDED, happened


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SEEDS + SOAK, 500))
def test_more_histories(first: int) -> None:
    played(range(first, first + 500))


@pytest.mark.parametrize("rules", BROKEN, ids=repr)
def test_a_rule_that_is_broken_is_missed(rules: Rules) -> None:
    assert any(_missed(seed, rules) for seed in range(20 * SEEDS))


def _missed(seed: int, rules: Rules) -> str:
    try:
        History(seed, rules).play()
    except Wrong as error:
        return str(error)
    return ""


def test_a_history_is_played_again_alike() -> None:
    assert History(11).play().happened == History(11).play().happened


@pytest.mark.parametrize("seed", range(10))
def test_two_replicas_of_two(seed: int) -> None:
    happened = History(seed, replicas=2, shards=2).play().happened
    assert happened["lost"] or happened["finished"] >= 2 * 8
