from __future__ import annotations

import pytest

from consensus.config import Config, Policy
from consensus.simulation.invariants import Activation, Violation
from consensus.view import Cause

from .stage import Stage


def test_chosen_by_less_than_a_quorum() -> None:
    stage = Stage(Activation, 5)
    a, b, *_, e = stage.hosts
    with pytest.raises(Violation, match=r"takes view 2 .* for chosen without quorum of view 1 .*with the votes of"):
        stage.choose(a, stage.value(stage.view, e), [a, b])


def test_votes_that_reached_somebody_else_do_not_count() -> None:
    stage = Stage(Activation)
    a, b, c = stage.hosts
    value = stage.value(stage.view, c)
    with pytest.raises(Violation, match="without quorum"):
        stage.choose(b, value, [a, b], (1, a.id))


def test_half_needs_the_most_senior() -> None:
    stage = Stage(Activation, 4)
    a, b, c, d = stage.hosts
    with pytest.raises(Violation, match="without quorum"):
        stage.choose(c, stage.value(stage.view, a), [c, d])
    stage = Stage(Activation, 4)
    a, b, c, d = stage.hosts
    stage.choose(a, stage.value(stage.view, d), [a, b])


def test_the_dead_are_discounted_only_after_contact() -> None:
    stage = Stage(Activation, 4)
    a, *others = stage.hosts
    stage.world.run(1.0)
    for other in others:
        stage.observers.show("killed", other)
    stage.choose(a, stage.value(stage.view, *others, cause=Cause.PROOF), [a])
    stage = Stage(Activation, 4)
    a, *others = stage.hosts
    for other in others:
        stage.world.faults.cut_both(a.id, other.id)
    stage.world.run(1.95)
    for other in others:
        stage.observers.show("killed", other)
    with pytest.raises(Violation, match="without quorum"):
        stage.choose(a, stage.value(stage.view, *others, cause=Cause.PROOF), [a])


def test_following_what_nobody_proposed() -> None:
    stage = Stage(Activation)
    with pytest.raises(Violation, match="its ballots: none"):
        stage.follows(stage.hosts[0], stage.after(stage.view, stage.hosts[2]))


def test_active_before_all_have_installed_it_or_are_ready() -> None:
    stage = Stage(Activation)
    a, b, c = stage.hosts
    view = stage.choose(a, stage.value(stage.view, c), [a, b])
    stage.install(view, a)
    with pytest.raises(Violation, match=r"before .* installed it"):
        stage.activate(view, a)
    stage = Stage(Activation)
    a, b, c = stage.hosts
    view = stage.choose(a, stage.value(stage.view, c), [a, b])
    stage.install(view, a, b)
    stage.ready(view, a)
    with pytest.raises(Violation, match=r"before m.* said READY"):
        stage.activate(view, a)


def test_acting_without_being_a_member() -> None:
    stage = Stage(Activation)
    a, b, c = stage.hosts
    view = stage.choose(a, stage.value(stage.view, c), [a, b])
    with pytest.raises(Violation, match="without being a member"):
        stage.activate(view, c)


@pytest.mark.parametrize("leaves", [False, True])
def test_under_any_whoever_leaves_need_not_vote(leaves: bool) -> None:
    """Though the value names another one who leaves."""
    stage = Stage(Activation, 3, Config(policy=Policy.ANY))
    a, b, c = stage.hosts
    c.leave()
    value = stage.value(stage.view, c, cause=Cause.LEFT)
    if leaves:
        b.leave()
        stage.choose(a, value, [a])
    else:
        with pytest.raises(Violation, match="without quorum"):
            stage.choose(a, value, [a])
