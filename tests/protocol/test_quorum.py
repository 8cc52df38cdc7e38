"""Rules (a) and (b), as a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.protocol.state.quorum import is_quorum, missing

from .people import view_of

TABLE = [
    ("a", "a", "", True),
    ("a", "", "", False),
    ("ab", "a", "", True),  # half, with the most senior
    ("ab", "b", "", False),  # half, without
    ("ab", "b", "a", True),  # everybody who is not discounted
    ("abc", "ab", "", True),
    ("abc", "bc", "", True),
    ("abc", "a", "", False),
    ("abc", "a", "b", False),  # c may be alive
    ("abc", "a", "bc", True),
    ("abcd", "ab", "", True),
    ("abcd", "ad", "", True),
    ("abcd", "cd", "", False),
    ("abcd", "cd", "a", False),  # one dead does not turn half into a majority
    ("abcd", "bd", "c", False),  # the fork of membership.md: 1 and 3 with 2 dead
    ("abcd", "bcd", "", True),
    ("abcd", "cd", "ab", True),
    ("ghbcafk", "afk", "bc", False),  # 3 of 5 living, 3 of 7 in all
    ("ghbca", "gh", "bc", False),  # 2 of 3 living
    ("ghbca", "gha", "bc", True),
    ("abcde", "e", "abcd", True),
    ("abcde", "e", "abc", False),
    ("abcdef", "abc", "", True),
    ("abcdef", "def", "", False),
]


@pytest.mark.parametrize(("names", "responders", "discounted", "expected"), TABLE)
def test_table(names: str, responders: str, discounted: str, expected: bool) -> None:
    assert is_quorum(view_of(names), set(responders), set(discounted)) is expected


def test_strangers_do_not_count() -> None:
    assert not is_quorum(view_of("abc"), {"a", "x", "y"}, set())


def test_the_discounted_who_answered_before_they_died_count() -> None:
    assert is_quorum(view_of("abc"), {"a", "b"}, {"b"})


def test_missing_in_seniority_order() -> None:
    assert missing(view_of("dcba"), {"c"}, {"a"}) == ("d", "b")


@given(st.sets(st.sampled_from("abcdefg")), st.sets(st.sampled_from("abcdefg")))
def test_two_disjoint_sides_never_both_decide_unless_each_holds_the_other_dead(one: set[str], other: set[str]) -> None:
    view = view_of("abcdefg")
    other = other - one
    if is_quorum(view, one, set()):
        assert not is_quorum(view, other, set())


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.sampled_from("abcdef"))
def test_more_answers_never_hurt(responders: set[str], discounted: set[str], more: str) -> None:
    view = view_of("abcdef")
    if is_quorum(view, responders, discounted):
        assert is_quorum(view, responders | {more}, discounted)
        assert is_quorum(view, responders, discounted | {more})


@given(st.sets(st.sampled_from("abcdefxyz")), st.sets(st.sampled_from("abcdefxyz")), st.integers(1, 6))
def test_the_two_rules_as_they_are_written(responders: set[str], discounted: set[str], size: int) -> None:
    view = view_of("abcdef"[:size])
    present = [key for key in view.ids if key in responders]
    most = 2 * len(present) > size or (2 * len(present) == size and "a" in present)
    assert is_quorum(view, responders, discounted) is (most or responders | discounted >= set(view.ids))
