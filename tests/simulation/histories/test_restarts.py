"""Workers that come back at the address at which they died, over and over, in random histories: they are new members."""

from __future__ import annotations

import pytest

from consensus.simulation.script.scenario import POLICIES
from tests.simulation.data_plane import mixing, play, restarting_history

SEEDS = 4
"""In one test."""
SOAK = 1500
ODD = (
    (447203, ""),  # a leaver's request is heard again when its receiver is about to propose that anyway
    (448157, ""),  # a joiner dies and comes back: it was admitted though its second lifetime had asked for half a second
    (450557, ""),  # both founders leave, and the joiner, alone, ends for want of their state
    (750467, "any"),  # the coordinator misses who confirmed its suspicion, and waits for one accuser more, for ever
)


def wrong(seed: int, policy: str) -> str:
    """What is wrong with the history of that seed, if anything, with two kinds of programs."""
    for jobs in (mixing(seed), None):
        result = play(restarting_history(seed, policy), jobs=jobs)
        if not result.good:
            return f"seed {seed} {policy}: {result.scenario}\n{result}"
    return ""


@pytest.mark.parametrize(
    ("first", "policy"),
    [
        *((0, policy) for policy in POLICIES),
        *(pytest.param(first, policy, marks=pytest.mark.soak) for first in range(SEEDS, SOAK, SEEDS) for policy in POLICIES),
    ],
)
def test_promises_hold_wherever_they_come_back(first: int, policy: str) -> None:
    bad = [text for seed in range(first, first + SEEDS) if (text := wrong(seed, policy))]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(("seed", "policy"), ODD)
def test_what_went_wrong_once(seed: int, policy: str) -> None:
    assert not wrong(seed, policy)


def test_the_same_address_comes_back_again_and_again() -> None:
    again = 0
    for seed in range(SEEDS * 3):
        names = [event.words[0] for event in restarting_history(seed).events if event.command == "restart"]
        again += len(names) - len(set(names))
    assert again > SEEDS
