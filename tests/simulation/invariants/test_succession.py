from __future__ import annotations

import pytest

from consensus.simulation.invariants import Succession, Violation
from consensus.view import View

from .stage import Stage


def test_an_epoch_that_does_not_rise() -> None:
    stage = Stage(Succession)
    host = stage.hosts[0]
    second = stage.after(stage.view, stage.hosts[2])
    stage.install(second, host)
    stage.activate(second, host)
    with pytest.raises(Violation, match=r"went from view 2 .* to view 1"):
        stage.activate(stage.view, host)
    with pytest.raises(Violation, match=r"follows view 1 .* after view 2"):
        stage.follows(host, stage.view)


def test_acting_in_a_view_of_another_branch() -> None:
    stage = Stage(Succession, 4)
    a, b, c, d = stage.hosts
    left, right = stage.after(stage.view, d), stage.after(stage.view, c)
    stage.follows(a, left)
    stage.activate(left, a)
    after_right = stage.after(right, b)
    stage.checkers.facts.record.meet(right)
    stage.follows(d, after_right)
    with pytest.raises(Violation, match=r"active view 2 .* is no ancestor of view 3 .*: both are active"):
        stage.activate(after_right, d)


def test_an_older_view_that_activates_late_beside_the_chain() -> None:
    stage = Stage(Succession, 4)
    a, b, c, d = stage.hosts
    left = stage.after(stage.view, d)
    third = stage.after(left, c)
    for host, view in ((a, left), (b, third)):
        stage.follows(host, view)
    stage.activate(third, b)
    stage.follows(d, stage.after(stage.view, c))
    with pytest.raises(Violation, match="no ancestor"):
        stage.activate(stage.after(stage.view, c), d)


def test_an_epoch_that_skips() -> None:
    stage = Stage(Succession)
    with pytest.raises(Violation, match=r"view 3 .* follows view 1"):
        stage.follows(stage.hosts[0], View(3, stage.view.view_id, stage.view.members))
    with pytest.raises(Violation, match="has no parent"):
        stage.follows(stage.hosts[1], View(2, "", stage.view.members))
