from __future__ import annotations

import pytest

from consensus.simulation.invariants import Uniqueness, Violation

from .stage import Stage


def test_two_active_views_of_one_epoch() -> None:
    stage = Stage(Uniqueness)
    a, b, c = stage.hosts
    stage.activate(stage.after(stage.view, c), a)
    with pytest.raises(
        Violation, match=r"invariant 1 .*two active views of epoch 2: m\d~.* acts in .* since .*, m\d~.* in"
    ) as told:
        stage.activate(stage.after(stage.view, a), b)
    assert told.value.number == 1
    assert "acts in view 1" in str(told.value), "the story so far"


def test_the_same_view_everywhere_is_fine() -> None:
    stage = Stage(Uniqueness)
    stage.activate(stage.after(stage.view, stage.hosts[2]), *stage.hosts[:2])
