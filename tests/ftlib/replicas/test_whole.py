"""Which replicas are whole in a view, and in which order."""

from __future__ import annotations

import itertools

import pytest

from consensus import Cause, Member, View
from consensus.member import whole_cohorts
from consensus.view import Removal
from ftlib.core.replicas.whole import facts_of, part_in, whole_replicas
from ftlib.settings.replicas import Part


def member(replica: str, shard: int, shards: int = 2, again: str = "") -> Member:
    facts = facts_of(Part(replica, shard, shards))
    return Member(f"{replica}{shard}{again}", "127.0.0.1", 1, tuple(sorted(facts.items())))


def names(members: list[Member]) -> list[str]:
    return [replica.name for replica in whole_replicas(members)]


def test_a_replica_counts_while_all_its_members_are_there() -> None:
    four = [member("a", 0), member("b", 1), member("a", 1), member("b", 0)]
    assert [replica.ids for replica in whole_replicas(four)] == [("a0", "a1"), ("b0", "b1")]
    for gone in four:
        left = [each for each in four if each is not gone]
        assert names(left) == [name for name in ("a", "b") if not gone.id.startswith(name)]
    assert names([four[0], four[1]]) == []


def test_survivors_outrank_what_became_whole_later() -> None:
    before = [member("b", 0), member("a", 0), member("b", 1)]  # a is not whole yet, though its first process came early
    assert names(before) == ["b"]
    assert names([*before, member("a", 1)]) == ["b", "a"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_ranks_of_survivors_never_change_their_order(order: tuple[int, ...]) -> None:
    four = [member("a", 0), member("a", 1), member("b", 0), member("b", 1)]
    view = [four[index] for index in order]
    was = names(view)
    assert names([*view, member("c", 0), member("c", 1)]) == [*was, "c"]


def test_a_place_taken_twice_makes_no_replica() -> None:
    view = [member("a", 0), member("a", 1), member("b", 0), member("b", 1), member("a", 1, again="x")]
    assert names(view) == ["b"]


def test_members_that_disagree_how_many_shards_there_are_make_no_replica() -> None:
    assert names([member("a", 0, 2), member("a", 1, 3), member("a", 2, 3), member("b", 0), member("b", 1)]) == ["b"]


def test_a_member_without_facts_is_a_replica_by_itself() -> None:
    lone = [Member("x", "127.0.0.1", 1), Member("y", "127.0.0.1", 2)]
    assert facts_of(Part("any", 0, 1)) == {}
    assert names(lone) == ["x", "y"]


@pytest.mark.parametrize(
    "facts",
    [{"_replica": "a"}, {"_replica": "a", "_shard": "2", "_shards": "2"}, {"_replica": "a", "_shard": "-1", "_shards": "2"}],
)
def test_nonsense_makes_no_replica(facts: dict[str, str]) -> None:
    odd = Member("odd", "127.0.0.1", 1, tuple(sorted(facts.items())))
    assert part_in(odd) is None
    assert names([odd, member("a", 0), member("a", 1)]) == ["a"]


def test_members_of_a_cohort_enter_a_view_together() -> None:
    a0, a1, b0 = member("a", 0), member("a", 1), member("b", 0)
    lone = Member("x", "127.0.0.1", 1)
    assert whole_cohorts([a0, b0, lone, a1]) == [lone, a0, a1], "b is not whole, and a became so last"


def test_members_of_a_cohort_leave_a_view_together_unless_none_would_be_left() -> None:
    a0, a1, b0, b1 = (member(name, shard) for name in "ab" for shard in (0, 1))
    view = View(3, "parent", (a0, a1, b0, b1))
    dead = (Removal("a1", Cause.PROOF),)
    assert view.with_cohorts(dead) == (Removal("a0", Cause.COHORT), *dead)
    both = (*dead, Removal("b0", Cause.SILENCE))
    assert view.with_cohorts(both) == both, "no cohort would be whole: all who are left stay"
    alone = View(3, "parent", (Member("x", "127.0.0.1", 1), Member("y", "127.0.0.1", 2)))
    assert alone.with_cohorts((Removal("x", Cause.PROOF),)) == (Removal("x", Cause.PROOF),)


def test_people_see_the_cohort_of_a_member_and_not_its_other_facts() -> None:
    assert member("a", 1).shown_cohort() == {"name": "a", "size": 2}
    assert member("a", 1).shown() == {}
    assert Member("x", "127.0.0.1", 1).shown_cohort() is None
