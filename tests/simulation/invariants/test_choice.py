from __future__ import annotations

import pytest

from consensus.simulation.invariants import Choice, Violation

from .stage import Stage


def test_a_living_voter_of_both() -> None:
    stage = Stage(Choice, 4)
    a, b, c, d = stage.hosts
    stage.choose(a, stage.value(stage.view, d), [a, b, c])
    with pytest.raises(Violation, match=r"m.* chose view 2 .*, m.* chose view 2 .*, and m.*, who voted for both, live"):
        stage.choose(b, stage.value(stage.view, a), [b, c, d])


def test_two_values_that_can_both_activate() -> None:
    stage = Stage(Choice, 4)
    a, b, c, d = stage.hosts
    stage.choose(a, stage.value(stage.view, c, d), [a, b])
    with pytest.raises(Violation, match="both can activate"):
        stage.choose(c, stage.value(stage.view, a, b), [c, d])


def test_a_second_value_is_fine_where_the_first_can_never_activate() -> None:
    """The first fork story: 0 and 2 choose {0, 1, 2}, 2 dies before it installs anything."""
    stage = Stage(Choice, 4)
    a, b, c, d = stage.hosts
    stage.choose(a, stage.value(stage.view, d), [a, c])
    c.alive = False
    stage.choose(d, stage.value(stage.view, a, c), [b, d])


def test_ready_for_two_views_of_an_epoch() -> None:
    stage = Stage(Choice)
    a, b, c = stage.hosts
    stage.ready(stage.after(stage.view, c), a)
    with pytest.raises(Violation, match=r"READY .* of the same epoch"):
        stage.ready(stage.after(stage.view, b), a)
