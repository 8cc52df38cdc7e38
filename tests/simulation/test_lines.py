"""What holds for a whole job holds on each line of views, where sides may go on apart."""

from __future__ import annotations

import pytest

from consensus.config import Config, Policy
from consensus.simulation import World
from consensus.view import NO_VIEW_ID, View
from tests.protocol.people import member
from tests.simulation.data_plane.judging.lines import Lines, OnLine


def after(parent: View | None, names: str) -> View:
    epoch, parent_id = (1, NO_VIEW_ID) if parent is None else (parent.epoch + 1, parent.view_id)
    return View(epoch, parent_id, tuple(member(name) for name in names), origin="" if parent is None else parent.cluster)


FIRST = after(None, "abcd")
LEFT, RIGHT = after(FIRST, "ab"), after(FIRST, "cd")
LAST = after(LEFT, "a")


def lines(policy: Policy) -> Lines:
    found, world = Lines(), World(1, Config(policy=policy))
    world.observe(found)
    host = world.start("a")
    for view in (FIRST, LEFT, RIGHT, LAST):
        found.adopted(host, view)
    return found


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(FIRST, FIRST, True), (FIRST, LAST, True), (LAST, LEFT, True), (LEFT, RIGHT, False), (RIGHT, LAST, False)],
)
def test_a_view_is_on_one_line_with_its_ancestors(one: View, other: View, same: bool) -> None:
    assert lines(Policy.ANY).same(one, other) is lines(Policy.ANY).same(other, one) is same
    assert lines(Policy.MAJORITY).same(one, other), "nobody may go on apart: all is one line"


def test_views_of_two_foundings_are_on_two_lines() -> None:
    assert not lines(Policy.ANY).same(after(None, "xy"), FIRST)


def test_one_value_on_each_line() -> None:
    values: OnLine[int, str] = OnLine(lines(Policy.ANY))
    assert values.settle(7, LEFT, "left") == "left"
    assert values.settle(7, RIGHT, "right") == "right"
    assert values.settle(7, LAST, "other") == "left", "whoever comes later is told that it differs"
    assert values.settle(7, FIRST, "left") == "right", "before the fork it has to be so for both"
    assert values.find(7, LAST) == "left" and values.find(7, RIGHT) == "right" and values.find(8, FIRST) is None
