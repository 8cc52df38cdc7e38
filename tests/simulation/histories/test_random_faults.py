"""Random histories in volume: a safety phase with every fault, then a healed network on which the living must agree."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from consensus.simulation import draw, play
from consensus.simulation.script.commands import COMMANDS
from consensus.simulation.script.history import SIZES

from .volume import mostly_soak

CHUNK = 20
SEEDS = 520
APART = 120
"""Histories of policy ``any``."""
ODD_APART = (
    24,  # a request to leave is heard again in the moment in which its receiver is about to propose that anyway
    483,  # one of four is left, above ``mesh_limit``: nobody confirmed that the others are silent
    2601,  # three of seven are left, and must all suspect a dead one that two of them do not watch
    3900,
)


@pytest.mark.parametrize("first", mostly_soak(range(0, SEEDS, CHUNK), 8))
def test_survivors_agree_after_any_history(first: int) -> None:
    """Every invariant is checked at every event. A seed that fails is told with the command that plays it again."""
    bad = []
    for seed in range(first, first + CHUNK):
        result = play(draw(seed))
        if not result.good:
            bad.append(f"{result}\nreplay: python -m benchmarks soak --seed {seed} --shrink")
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize(
    "seeds", mostly_soak([ODD_APART, *(range(first, first + CHUNK) for first in range(0, APART, CHUNK))], 3)
)
def test_one_side_is_left_where_sides_go_on_apart(seeds: Iterable[int]) -> None:
    """Under ``any`` nobody is ever blocked: whoever was in a view goes on."""
    bad = []
    for seed in seeds:
        result = play(draw(seed, policy="any"))
        if not result.good:
            bad.append(f"{result}\nreplay: python -m benchmarks soak --policy any --seed {seed} --shrink")
    assert not bad, "\n".join(bad)


def test_the_histories_have_every_size_and_every_fault() -> None:
    scenarios = [draw(seed) for seed in range(SEEDS)]
    assert {scenario.size for scenario in scenarios} == set(SIZES) == {1, 2, 3, 4, 5, 8, 16}
    commands = {event.command for scenario in scenarios for event in scenario.events}
    elsewhere = {"bereave"}  # see ``test_last_words``
    assert commands == {command for command in COMMANDS if not command.startswith("store_")} - elsewhere, "each is played"
    assert sum(scenario.early for scenario in scenarios) > 20
    assert sum(not scenario.trust_refused for scenario in scenarios) > 20
