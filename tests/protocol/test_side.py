"""How two views are related, and which of two sides goes on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consensus.config import Policy
from consensus.messages import Claim
from consensus.protocol.state.side import Relation, claim, related
from consensus.view import View

from .people import view_of

MAJORITY, ANY = Policy.MAJORITY, Policy.ANY
FIRST = view_of("abcd")


def later(names: str, epoch: int, parent: View = FIRST) -> View:
    return view_of(names, epoch, parent.view_id, parent.cluster)


@pytest.mark.parametrize(
    ("policy", "mine", "other", "relation"),
    [
        (MAJORITY, FIRST, FIRST, Relation.OWN),
        (MAJORITY, FIRST, later("abc", 2), Relation.OWN),
        (MAJORITY, FIRST, later("bcd", 2), Relation.AHEAD),
        (MAJORITY, FIRST, later("xyz", 9), Relation.AHEAD),
        (MAJORITY, later("ab", 3), later("bcd", 2), Relation.BEHIND),
        (MAJORITY, later("ab", 2), later("bcd", 2), Relation.TWIN),
        (MAJORITY, FIRST, view_of("xyz"), Relation.RIVAL),
        (MAJORITY, FIRST, later("axyz", 5, view_of("xyz")), Relation.RIVAL),
        (ANY, FIRST, later("bcd", 2), Relation.AHEAD),
        (ANY, later("ab", 2), later("cd", 2), Relation.RIVAL),
        (ANY, later("ab", 2), later("cd", 7), Relation.RIVAL),
        (ANY, later("ab", 2), later("bcd", 2), Relation.TWIN),
        (ANY, later("ab", 3), later("bcd", 2), Relation.BEHIND),
        (ANY, FIRST, view_of("xyz"), Relation.RIVAL),
    ],
)
def test_relations_as_a_member_a_sees_them(policy: Policy, mine: View, other: View, relation: Relation) -> None:
    assert related(policy, "a", mine, other) is relation


def test_steps_then_size_then_the_lowest_id() -> None:
    assert Claim(2, 1, "z").above(Claim(1, 9, "a"))
    assert Claim(2, 3, "z").above(Claim(2, 2, "a"))
    assert Claim(2, 2, "a").above(Claim(2, 2, "b"))
    assert claim(view_of("cab"), 7) == Claim(7, 3, "a")


CLAIMS = st.builds(Claim, st.integers(0, 3), st.integers(1, 3), st.sampled_from("abc"))


@given(CLAIMS, CLAIMS, CLAIMS)
def test_of_different_claims_one_is_above_and_there_is_no_circle(one: Claim, two: Claim, three: Claim) -> None:
    assert one.above(two) + two.above(one) == (one != two)
    assert not (one.above(two) and two.above(three) and three.above(one))
