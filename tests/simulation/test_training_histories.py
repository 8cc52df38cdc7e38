"""All or nothing bit for bit, and no step lost: processes that train, in random histories; then everybody goes on."""

from __future__ import annotations

import pytest

from tests.simulation.data_plane import play, random_history

SEEDS = 150
ODD = (335,)
"""One of the founders misses a view before the first call: whose deal is over other members than the others'."""


@pytest.mark.parametrize("seed", [*range(SEEDS), *ODD])
def test_promises_hold_in_any_history(seed: int) -> None:
    result = play(random_history(seed))
    assert result.good, f"{result.scenario}\n{result}"
