"""Each shard's plan fits those of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from consensus import Member, View
from ftlib.core.calls.salvage import FaultKind, Report, SalvagePlan
from ftlib.core.calls.shard_salvage import plan_across
from ftlib.core.replicas.whole import facts_of
from ftlib.settings.replicas import Part

DONE = Report(4, 5, 4, b"x", b"x", "a0", founder=True, blank=False, has_state=True)
"""Has finished call 4, and is in call 5."""
FINISHED = replace(DONE, finished=5, step=5, current=0, current_signature=b"")
"""Has finished call 5, and is in none."""
LOADED = replace(DONE, founder=False, blank=True, newcomer=True, last_signature=b"")
"""A joiner that has loaded the state after call 4, and has finished no call."""


def member(name: str) -> Member:
    """``b1``: shard 1 of replica ``b``."""
    return Member(name, "127.0.0.1", ord(name[0]) * 10 + int(name[1]), tuple(facts_of(Part(name[0], int(name[1]), 2)).items()))


def plans(reports: Mapping[str, Report]) -> list[SalvagePlan]:
    """Those of both shards."""
    view = View(7, "before", tuple(map(member, reports)))
    encoded = {key: report.encode() for key, report in reports.items()}
    return [plan_across(view, encoded, shard) for shard in range(2)]


def test_a_joiner_whose_mate_holds_the_result_adopts_it() -> None:
    held = replace(LOADED, held=5, held_signature=b"x")
    first, second = plans(
        {"a0": FINISHED, "a1": replace(FINISHED, state_id="a1"), "b0": held, "b1": replace(LOADED, state_id="a1")}
    )
    assert first.call == second.call == 5
    assert "b0" not in first.blank
    assert "b1" not in second.blank, "its mate keeps the result, so it must not begin after it as one that has the state anew"
    assert second.adoptions == (("b1", "a1"),)


def test_a_joiner_none_of_whom_holds_the_result_gets_the_state() -> None:
    first, second = plans(
        {"a0": FINISHED, "a1": replace(FINISHED, state_id="a1"), "b0": LOADED, "b1": replace(LOADED, state_id="")}
    )
    assert first.blank == ("b0",)
    assert second.blank == ("b1",)


def test_what_a_member_holds_and_its_mate_does_not_is_done_again() -> None:
    held = replace(DONE, held=5, held_signature=b"x")
    first, second = plans({"a0": held, "a1": replace(DONE, state_id="a1"), "b0": held, "b1": replace(DONE, state_id="a1")})
    assert first.call == second.call == 4
    assert first.adoptions == second.adoptions == ()


def test_all_shards_deal_by_what_all_processes_have_drawn() -> None:
    """Under the replicas' names, which are the same in each shard; who has drawn nothing has no report."""
    drawn = {"a0": b"far", "a1": b"near", "b0": b"", "b1": b"some"}
    first, second = plans({key: replace(DONE, state_id=f"a{key[1]}", drawn=data) for key, data in drawn.items()})
    assert first.drawn == second.drawn == (("a", b"far"), ("a", b"near"), ("b", b"some"))


def test_a_founder_that_has_to_leave_without_the_initial_state_is_no_member_of_a_replica_that_has_it() -> None:
    """Else it alone would take part in the next call with nothing of its own, and its mate with what it has computed."""
    finished = replace(DONE, finished=1, step=1, current=0, current_signature=b"")
    behind = replace(DONE, finished=0, step=0, current=1, last_signature=b"")
    first, second = plans(
        {"a0": finished, "a1": replace(finished, state_id="a1"), "b0": behind, "b1": replace(behind, state_id="")}
    )
    assert first.call == second.call == 1
    assert first.blank == first.healed == ("b0",)
    assert second.blank == second.healed == ("b1",)


def test_before_the_first_call_founders_have_an_initial_state_of_their_own() -> None:
    behind = replace(DONE, finished=0, step=0, current=1, last_signature=b"")
    first, second = plans(
        {"a0": behind, "a1": replace(behind, state_id=""), "b0": behind, "b1": replace(behind, state_id="b1")}
    )
    assert first.call == second.call == 0
    assert first.blank == second.blank == ()
    assert second.holders == ("b1",)


def test_a_result_that_is_held_can_be_given_whatever_the_program_did_to_the_one_before() -> None:
    """Else shard 1 of ``c`` would get the state, and wait for ever for its mate, which waits for it with the result."""
    clipped = replace(DONE, state_id="a1", held=5, held_signature=b"x", spoilt=True)
    first, second = plans({"b0": FINISHED, "b1": clipped, "c0": DONE, "c1": replace(DONE, state_id="a1")})
    assert first.adoptions == (("c0", "b0"),)
    assert second.adoptions == (("c1", "b1"),)
    assert first.blank == second.blank == ()


def test_processes_of_different_replicas_that_have_loaded_the_state_are_no_replica_that_has_it() -> None:
    """They may have loaded it before different calls, and their mates would go on from there in one shard each."""
    blank = replace(LOADED, state_id="")
    for plan in plans({"b0": LOADED, "b1": blank, "c0": blank, "c1": replace(LOADED, state_id="a1", finished=5)}):
        assert plan.fault is not None
        assert plan.fault.kind is FaultKind.STATE_LOST
        assert plan.fault.blamed == ("b0", "b1", "c0", "c1")


def test_joiners_without_registered_state_go_on_together() -> None:
    """Where one has finished its first call, its mate keeps the result of that; who missed a view counts as its mate does."""
    nothing = replace(LOADED, state_id="", has_state=False)
    finished = replace(nothing, finished=5, step=5, current=0, current_signature=b"", last_signature=b"x", blank=False)
    first, second = plans({"b0": finished, "b1": replace(nothing, held=5, held_signature=b"x")})
    assert (first.call, second.call) == (5, 5)
    assert first.blank == second.blank == ()
    first, second = plans({"b0": nothing, "b1": replace(nothing, finished=0, step=0)})
    assert (first.call, second.call) == (4, 4)
    assert first.fault is second.fault is None


def test_who_is_behind_and_registered_nothing_that_could_be_loaded_stops_with_all_of_its_replica() -> None:
    """As a replica of one process does: it would go on without the average that all others have applied."""
    done, finished = (replace(each, has_state=False) for each in (DONE, FINISHED))
    for plan in plans({"a0": finished, "a1": replace(finished, spoilt=True), "b0": done, "b1": done}):
        assert plan.fault is not None
        assert (plan.fault.kind, plan.fault.blamed) == (FaultKind.MISMATCH, ("b0", "b1"))
