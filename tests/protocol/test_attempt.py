"""A proposer's ballot: what it proposes, and when it is decided."""

from __future__ import annotations

import itertools

import pytest

from consensus.config import Policy
from consensus.messages import Accept, Ballot, Prepare, Promise
from consensus.protocol.agreement.attempt import Attempt, AttemptPhase
from consensus.view import Cause, Proposal, Removal

from .people import view_of

VIEW = view_of("abcde")
BALLOT: Ballot = (5, "b")


def value(name: str) -> Proposal:
    return Proposal(VIEW.view_id, 2, (Removal(name, Cause.PROOF),))


def attempt() -> Attempt:
    return Attempt(VIEW, BALLOT, 7, 100.0)


def promise(ballot: Ballot | None = None, accepted: Proposal | None = None) -> Promise:
    return Promise(2, VIEW.view_id, BALLOT, ballot, accepted)


def test_proposes_its_own_value_where_nothing_was_accepted() -> None:
    one = attempt()
    one.promises = {"a": promise(), "b": promise(), "c": promise()}
    one.propose(value("e"))
    assert one.proposal == value("e")
    assert one.request() == Accept(2, VIEW.view_id, BALLOT, value("e"), 7)


@pytest.mark.parametrize("order", list(itertools.permutations("abcd")), ids="".join)
def test_reproposes_what_was_accepted_with_the_highest_ballot(order: tuple[str, ...]) -> None:
    """In whatever order the promises come."""
    promises = {
        "a": promise((0, "a"), value("c")),
        "b": promise((2, "c"), value("d")),
        "c": promise(),
        "d": promise((2, "a"), value("a")),
    }
    one = attempt()
    one.promises = {key: promises[key] for key in order}
    one.propose(value("e"))
    assert one.proposal == value("d")


def test_phases_ask_and_count_apart() -> None:
    one = attempt()
    assert one.request() == Prepare(2, VIEW.view_id, BALLOT)
    one.promises = {key: promise() for key in "abc"}
    assert one.decided(frozenset())
    one.propose(value("e"))
    assert one.phase is AttemptPhase.ACCEPT
    assert one.responders == frozenset()
    assert not one.decided(frozenset())
    one.reports = {"a": b"", "b": b""}
    assert one.waiting_for(frozenset("e")) == ("c", "d")
    assert one.decided(frozenset("cde"))


@pytest.mark.parametrize("half", [promise((9, "a"), None), promise(None, value("c"))], ids=["no value", "no ballot"])
def test_half_a_promise_names_no_value(half: Promise) -> None:
    """Nobody sends such a thing; whoever does changes nothing by it."""
    one = attempt()
    one.promises = {"a": half, "b": promise((2, "c"), value("d")), "c": half}
    one.propose(value("e"))
    assert one.proposal == value("d")


def test_where_a_store_decides_nobodys_answer_is_missing() -> None:
    one = Attempt(VIEW, BALLOT, 7, 100.0, Policy.STORAGE)
    assert one.waiting_for(frozenset()) == ()
    assert not one.decided(frozenset("abcde"))
