"""Random histories in volume: a safety phase with every fault, then a healed network on which the living must agree."""

from __future__ import annotations

import pytest

from consensus.simulation import draw, play
from consensus.simulation.script.commands import COMMANDS
from consensus.simulation.script.history import SIZES

CHUNK = 20
SEEDS = 520


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_survivors_agree_after_any_history(first: int) -> None:
    """Every invariant is checked at every event. A seed that fails is told with the command that plays it again."""
    bad = []
    for seed in range(first, first + CHUNK):
        result = play(draw(seed))
        if not result.good:
            bad.append(f"{result}\nreplay: python -m benchmarks soak --seed {seed} --shrink")
    assert not bad, "\n".join(bad)


def test_the_histories_have_every_size_and_every_fault() -> None:
    scenarios = [draw(seed) for seed in range(SEEDS)]
    assert {scenario.size for scenario in scenarios} == set(SIZES) == {1, 2, 3, 4, 5, 8, 16}
    commands = {event.command for scenario in scenarios for event in scenario.events}
    elsewhere = {"bereave"}  # see ``test_last_words``
    assert commands == {command for command in COMMANDS if not command.startswith("store_")} - elsewhere, "each is played"
    assert sum(scenario.early for scenario in scenarios) > 20
    assert sum(not scenario.trust_refused for scenario in scenarios) > 20
