"""All or nothing bit for bit, and no step lost: processes that train, in random histories; then everybody goes on."""

from __future__ import annotations

import functools

import pytest

from tests.simulation.data_plane import Trainers, play, random_history, settings

from .volume import mostly_soak

SEEDS = 150
APART = 60
"""Histories whose sides go on apart."""
ODD_APART = (
    310020,  # a member misses two views that keep it, and lives on: it followed none later, and all the others waited for it
    755651,  # two joiners have found a side whose members are all dead, and hear of it from each other
    757721,  # a member is stopped after it has acked the repeat of a ping, and its silence counts from the ping before that
)
ODD = (335,)
"""One of the founders misses a view before the first call: whose deal is over other members than the others'."""


@pytest.mark.parametrize("seed", mostly_soak([*ODD, *range(SEEDS)], 50))
def test_promises_hold_in_any_history(seed: int) -> None:
    result = play(random_history(seed))
    assert result.good, f"{result.scenario}\n{result}"


STORED = (
    3946,  # all founders die before anybody has their state: the joiners must not train, each with its own
    9514,  # whoever leaves a newcomer behind dies: it alone has the state, and must not drop it
    10740,  # a slow store comes back with leases of the dead: the one that lives is not cut off for their sake
    16832,  # whoever had loaded the state on entry to call 8 loads that on entry to call 7: who had finished 7 is dead
)


@pytest.mark.parametrize("seed", STORED)
def test_promises_hold_with_a_store(seed: int) -> None:
    result = play(random_history(seed, policy="storage"))
    assert result.good, f"{result.scenario}\n{result}"


@functools.cache
def apart(seed: int) -> tuple[str, int]:
    """What is wrong with the history of that seed, if anything; and how many calls two sides made."""
    jobs = Trainers(seed, **settings(seed))
    result = play(random_history(seed, policy="any"), jobs=jobs)
    return "" if result.good else f"{result.scenario}\n{result}", jobs.promises.counts["apart"]


@pytest.mark.parametrize("seed", mostly_soak([*ODD_APART, *range(APART)], 22))
def test_promises_hold_on_each_side(seed: int) -> None:
    wrong, _ = apart(seed)
    assert not wrong


@pytest.mark.soak
def test_sides_make_the_same_call_apart() -> None:
    assert sum(apart(seed)[1] for seed in range(APART)) > 10


def test_who_comes_where_somebody_died_is_no_founder() -> None:
    """At the same address it is asked for the dead one's report, before any view is installed there."""
    result = play(random_history(106444))
    assert result.good, str(result)
