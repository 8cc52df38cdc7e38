"""What the shards of replicas do about a call that a view change has cut. Random histories: ``test_replica_histories``."""

from __future__ import annotations

from ftlib.core.replicas.agreement import Holders, ShardPlan, ShardReport, plan_shards

R, S = ("r0", "r1"), ("s0", "s1")


def test_a_call_is_finished_once_all_members_hold_it() -> None:
    holders = Holders(R)
    holders.enter(7, 3)
    holders.receive("r0", 7, 3)
    assert not holders.complete
    holders.receive("stranger", 7, 3)
    assert not holders.complete
    holders.receive("r1", 7, 3)
    assert holders.complete


def test_what_was_said_in_another_view_or_call_does_not_count() -> None:
    holders = Holders(R)
    holders.enter(7, 3)
    holders.receive("r0", 7, 3)
    holders.receive("r1", 6, 3)
    holders.receive("r1", 7, 2)
    assert not holders.complete
    holders.receive("r1", 8, 3)
    assert not holders.complete
    holders.enter(8, 3)
    assert not holders.complete
    holders.receive("r0", 8, 3)
    assert holders.complete, "the other one was in that view before this member"


def test_words_may_come_early_and_in_any_order() -> None:
    holders = Holders(R)
    holders.enter(7, 1)
    holders.receive("r1", 7, 9)  # this member has yet to get the state after call 8
    holders.receive("r1", 7, 8)
    holders.enter(7, 9)
    holders.receive("r0", 7, 9)
    assert holders.complete


def reports(**places: tuple[int, int]) -> dict[str, ShardReport]:
    return {member: ShardReport(*place) for member, place in places.items()}


def test_what_nobody_has_finished_is_done_again() -> None:
    found = plan_shards([R, S], reports(r0=(4, 5), r1=(4, 4), s0=(4, 5), s1=(4, 5)))
    assert found == ShardPlan(4, holders=(*R, *S))


def test_what_one_member_has_finished_all_finish_each_from_its_shard() -> None:
    found = plan_shards([R, S], reports(r0=(5, 5), r1=(4, 5), s0=(4, 4), s1=(4, 5)))
    assert found == ShardPlan(5, keepers=("r1", "s1"), adoptions=(("s0", "r0"),), holders=(*R, *S))


def test_what_only_a_broken_replica_has_finished_does_not_count() -> None:
    assert plan_shards([S], reports(r0=(5, 5), s0=(4, 4), s1=(4, 5))) == ShardPlan(4, holders=S)


def test_joiners_get_the_state_as_whole_replicas() -> None:
    found = plan_shards([R, S], reports(r0=(4, 4), r1=(4, 4), s0=(4, 0)))
    assert (found.holders, found.blank, found.lost) == (R, S, False)


def test_who_cannot_get_a_result_gets_the_state() -> None:
    """A replica that has only the state after call 5 cannot give its result."""
    found = plan_shards([R, S], reports(r0=(5, 0), r1=(5, 0), s0=(4, 4), s1=(4, 4)))
    assert (found.call, found.holders, found.blank) == (5, R, S)


def test_the_state_is_lost_only_where_no_whole_replica_has_it() -> None:
    assert plan_shards([], reports(r0=(5, 5), s1=(5, 5))).lost
    blank = {member: ShardReport(0, 0, state=False) for member in S}
    assert plan_shards([S], blank) == ShardPlan(0, blank=S)


def test_a_member_that_has_loaded_alone_must_not_speak_for_its_replica() -> None:
    """Why a loaded state counts only once all of a replica have loaded: a history of the simulation came to these reports.

    b0 loaded the state after call 1 and missed the view in which b1 loaded the one after call 0, since all that had finished
    call 1 were lost.
    """
    replicas = [("a0", "a1"), ("b0", "b1")]
    reports = {"a0": ShardReport(0, 0), "a1": ShardReport(0, 0), "b0": ShardReport(1, 0), "b1": ShardReport(0, 0)}
    assert plan_shards(replicas, reports).lost
    reports["b0"] = ShardReport(1, 0, state=False)
    plan = plan_shards(replicas, reports)
    assert (plan.call, plan.holders, plan.blank) == (0, ("a0", "a1"), ("b0", "b1"))
