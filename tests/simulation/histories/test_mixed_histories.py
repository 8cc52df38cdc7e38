"""Random histories: programs make other calls between their averages, or train two models, with backup workers and learners.

What all members expect next is a function of the calls that they finished in a view (``Session.expected``): theirs, and those
that a learner or a backup worker took part in.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from consensus.simulation.script.scenario import POLICIES
from tests.simulation.data_plane import mixing, play, play_plot, random_history

from .volume import mostly_soak

SEEDS = 40
SOAK = 2000
CHUNK = 50
ODD = (
    52,  # a gradient changes after it was sent, while compressed buckets wait for others that are not begun any more
    1410,  # a founder is healed before its first call has ended, and draws nothing until it has caught up
    2411,  # a program adopts the result of a call that its backup worker was in, and its batch goes back
    22037,  # a learner reports between the end of a call, after which the last who has the state leaves, and the digests
    126523,  # a followed call becomes the program's own, which changes the result by .data, and gives that to the others
    321257,  # a member voted itself out, and another list is chosen, which names it: all waited 10 s for its report
    400170,  # nobody gives anything to a compressed call: all who are left have loaded the state as they entered it
)
ODD_APART = (
    709340,  # a ping and its repeat are acked at once, in a moment between two stops: silence counts from the first of them
)
"""Sides may go on apart."""


@functools.cache
def played(seed: int, policy: str = "") -> tuple[str, Counter[str]]:
    """What is wrong with the history of that seed, if anything; and what happened."""
    jobs = mixing(seed)
    result = play(random_history(seed, policy), jobs=jobs)
    return "" if result.good else f"{jobs.habits}\n{result.scenario}\n{result}", Counter(jobs.promises.counts)


@pytest.mark.parametrize("first", mostly_soak(range(0, SEEDS, 5), 3))
def test_promises_hold_whatever_comes_between_averages(first: int) -> None:
    for seed in range(first, first + 5):
        wrong, _ = played(seed)
        assert not wrong, f"seed {seed}: {wrong}"


@pytest.mark.parametrize("seed", ODD)
def test_what_went_wrong_once(seed: int) -> None:
    wrong, _ = played(seed)
    assert not wrong


@pytest.mark.parametrize("seed", ODD_APART)
def test_what_went_wrong_once_on_each_side(seed: int) -> None:
    wrong, _ = played(seed, "any")
    assert not wrong


def test_promises_hold_whatever_is_plotted() -> None:
    scenes = 0
    for seed in range(8):
        result, plot = play_plot(seed, make=mixing)
        assert result.good, f"seed {seed}: {plot.script}\n{result.scenario}\n{result}"
        scenes += plot.scene is not None
    assert scenes


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK, CHUNK))
def test_promises_hold_in_many_more(first: int) -> None:
    bad = []
    for seed in range(first, first + CHUNK):
        for policy in POLICIES:
            result = play(random_history(seed, policy), jobs=mixing(seed))
            if not result.good:
                bad.append(f"seed {seed} {policy}: {result}")
        result, plot = play_plot(seed, make=mixing)
        if not result.good:
            bad.append(f"seed {seed}, {plot.script}: {result}")
    assert not bad, "\n".join(bad)


@pytest.mark.soak
def test_the_histories_have_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SEEDS):
        counts.update(played(seed)[1])
    assert counts["opened"] > 200, "averages between other calls are hardly ever entered early"
    assert counts["not opened"] > 200
    assert counts["adopted"] > 0
    assert counts["loaded"] > 5
    assert counts["abandoned"] > 10
    assert counts["caught up"] > 5
    assert counts["followed"] > counts["caught up"]
    assert counts["stood in"] > 10
    assert counts["taken over"] > 2
