"""Views as differences, and reports in groups: what is told is what was there."""

from __future__ import annotations

from random import Random

import pytest

from consensus.member import Member
from consensus.messages.reports import Reports
from consensus.view import NO_VIEW_ID, Cause, Delta, Proposal, Removal, View

ABCD = View(1, NO_VIEW_ID, tuple(Member(name, "10.0.0.1", 1 + ord(name)) for name in "abcd"))
J = Member("j", "10.0.0.1", 7)
ACJ = Proposal(ABCD.view_id, 2, (Removal("b", Cause.PROOF), Removal("d", Cause.LEFT)), (J,)).apply(ABCD)


def test_a_difference_leads_from_the_parent_to_the_view() -> None:
    delta = Delta.between(ABCD, ACJ)
    assert delta == Delta(2, ACJ.view_id, ABCD.view_id, (1, 3), (J,))
    assert delta.apply(ABCD) == ACJ


def test_there_is_none_from_anything_but_the_parent() -> None:
    delta = Delta.between(ABCD, ACJ)
    assert delta is not None
    assert Delta.between(ACJ, ABCD) is None
    assert Delta.between(None, ABCD) is None
    assert delta.apply(ACJ) is None


@pytest.mark.parametrize(("removed", "joined"), [((1,), (J,)), ((1, 3), ()), ((1, 3), (J, J)), ((), ABCD.members)])
def test_what_is_not_the_view_that_the_id_says_is_refused(removed: tuple[int, ...], joined: tuple[Member, ...]) -> None:
    assert Delta(2, ACJ.view_id, ABCD.view_id, removed, joined).apply(ABCD) is None


def test_equal_reports_are_told_once() -> None:
    reports = Reports.of([b"k", b"k+1", b"k", b"k"])
    assert reports.groups == ((b"k", ()), (b"k+1", (1,)))
    assert reports.by_id(ABCD) == {"a": b"k", "b": b"k+1", "c": b"k", "d": b"k"}


@pytest.mark.parametrize("seed", range(20))
def test_whatever_was_reported_comes_out_again(seed: int) -> None:
    rng = Random(seed)
    given = [bytes([rng.randrange(3)]) for _ in range(rng.randrange(5))]
    told = Reports.of(given).by_id(ABCD)
    assert told is not None
    assert tuple(told.items()) == tuple(zip(ABCD.ids, given, strict=False))


@pytest.mark.parametrize(
    "reports",
    [
        Reports(5, ((b"", ()),)),
        Reports(-1, ()),
        Reports(2, ()),
        Reports(0, ((b"", ()),)),
        Reports(2, ((b"", (0,)),)),
        Reports(2, ((b"", ()), (b"x", (2,)))),
        Reports(2, ((b"", ()), (b"x", (-1,)))),
        Reports(3, ((b"", ()), (b"x", (1,)), (b"y", (1,)))),
    ],
)
def test_what_cannot_be_about_the_view_is_refused(reports: Reports) -> None:
    assert reports.by_id(ABCD) is None
