"""Programs that compute on private state between averages, in histories: what a joiner gets is of one border.

Members join, die and leave at any moment: while a joiner gets the state, between that and its first call, in a round.
"""

from __future__ import annotations

from collections import Counter

import pytest

from ftlib.recovery.donor.private_copies import PrivateCopy
from ftlib.recovery.layout.requests import Failures
from ftlib.state.registry import Registered
from tests.simulation.data_plane import Trainers, play, random_history
from tests.simulation.training import local

from .volume import mostly_soak

SEEDS = 16
SOAK = 1500
CHUNK = 50


def at_random(seed: int) -> tuple[str, Counter[str]]:
    """What is wrong with the random history of that seed, if anything; and what happened."""
    jobs = Trainers(seed, inner=4, compute=0.03)
    result = play(random_history(seed), jobs=jobs)
    return "" if result.good else f"{result.scenario}\n{result}", Counter(jobs.promises.counts)


def test_promises_hold_for_joiners_in_the_middle_of_a_round() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened += Counter(local(seed).trainers.promises.counts)
    assert happened["at a border"] > SEEDS
    assert happened["adopted"]


@pytest.mark.parametrize("seed", mostly_soak(range(SEEDS), 8))
def test_promises_hold_in_random_histories(seed: int) -> None:
    wrong, _ = at_random(seed)
    assert not wrong


def test_private_state_that_is_not_copied_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = PrivateCopy.make

    def shows(copy: PrivateCopy, registered: Registered, version: int, failures: Failures) -> None:
        make(copy, registered, version, failures)
        assert registered.private is not None
        copy.part = registered.private.part()

    monkeypatch.setattr(PrivateCopy, "make", shows)
    with pytest.raises(AssertionError, match="private state in the middle of a step"):
        list(map(local, range(SEEDS)))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_promises_hold_in_many_more(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        local(seed)
        wrong, _ = at_random(seed)
        bad += [wrong] if wrong else []
    assert not bad
