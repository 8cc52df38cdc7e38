"""Averages that are entered in the middle of backward: the decisions, and one member's part in an attempt."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from consensus import Member, View
from ftlib.common.counters import TimeUse
from ftlib.core.calls.attempt import Disagreement
from ftlib.core.calls.open_call import OpenCall
from ftlib.core.calls.salvage import SalvagePlan
from ftlib.core.calls.session import Session
from ftlib.core.engine.call_lock import CallLock
from ftlib.core.engine.open_average import OpenAverage
from ftlib.core.engine.open_calls import Move, OpenCalls, OpenFacts, next_move, why_not_early
from ftlib.core.plane.lag import Lag
from ftlib.core.plane.phase import Phase
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Bucket, Layout, lay_out_in_order
from ftlib.core.tensors.staging import Staging
from ftlib.core.tensors.trailer import RankRecord
from ftlib.errors import GroupError
from ftlib.frameworks.base import Operation
from tests.harness.company import at_once, company

ROW = 8
SPECS = [(torch.float32, (ROW,))] * 4
LAYOUT = lay_out_in_order("average", SPECS, [3, 2, 1, 0], 4 * ROW, 4 * ROW)
"""Four buckets, the first one with the trailer."""
VIEW = View(3, "parent", (Member("a", "127.0.0.1", 1), Member("b", "127.0.0.1", 2)))

# --- what is next -------------------------------------------------------------------------------------------------------

UNDER_WAY = OpenFacts(entered=True, early=False, failed=False, complete=2, begun=1, count=4, room=True)


def test_a_call_that_may_not_be_entered_early_is_left_to_the_end() -> None:
    for complete, begun, room in itertools.product(range(5), range(5), [True, False]):
        facts = OpenFacts(entered=False, early=False, failed=False, complete=complete, begun=begun, count=4, room=room)
        assert next_move(facts) is Move.DEFER
        assert next_move(replace(facts, early=True)) is Move.ENTER
        assert next_move(replace(facts, early=True, failed=True)) is Move.DEFER
        assert next_move(replace(facts, entered=True, failed=True)) is Move.DEFER


def test_what_is_complete_begins_where_there_is_room_but_for_the_last() -> None:
    assert next_move(UNDER_WAY) is Move.BEGIN
    assert next_move(replace(UNDER_WAY, room=False)) is Move.HOLD
    assert next_move(replace(UNDER_WAY, begun=2)) is Move.HOLD
    assert next_move(replace(UNDER_WAY, complete=4, begun=2)) is Move.BEGIN
    assert next_move(replace(UNDER_WAY, complete=4, begun=3)) is Move.HOLD
    assert next_move(replace(UNDER_WAY, complete=1, begun=0, count=1)) is Move.HOLD


# --- whether it may be entered ------------------------------------------------------------------------------------------


def session(
    plan: SalvagePlan | None = None, group: Any = None, *, expected: Layout | None = LAYOUT, keeps: bool = False
) -> Session:
    plan = plan or SalvagePlan(7, 7, current_state_id="b", holders=("b",))
    made = Session(VIEW, plan, "a", {"a": 0, "b": 1}, group or object(), keeps=keeps)
    if expected is not None:
        made.ended(expected)
    return made


def place(**other: object) -> Any:
    """A plane on which nothing speaks against it."""
    facts = {"phase": Phase.ACTIVE, "session": session(), "newcomer": False, "level": True, "lag": Lag()}
    facts |= {"boundary_requested": False}
    return SimpleNamespace(**{**facts, "leaving": lambda: False, "finished": 7, **other})


def a_call(layout: Layout = LAYOUT, owners: list[torch.nn.Parameter] | None = None, weight: float = 1.0) -> OpenCall:
    owners = owners or [torch.nn.Parameter(torch.zeros(shape)) for _, shape in SPECS]
    made = OpenCall(
        layout,
        owners,
        weight=weight,
        by_samples=False,
        batches=1,
        veto=True,
        views=False,
        relaid=lambda: layout,
        name="parameter {}".format,
        remark=str,
    )
    made.enter(8, 0.0)
    return made


LATE = Lag()
LATE.grow(1)
BEHIND = SalvagePlan(8, 8, adoptions=(("a", "b"),), current_state_id="b", holders=("b",))
LIKE_THIS = SalvagePlan(7, 7, LAYOUT.signature, current_state_id="b", holders=("b",))
ELSEWHERE = replace(LAYOUT, buckets=tuple(replace(bucket, place="cuda:0") for bucket in LAYOUT.buckets))
LIKE_THERE = SalvagePlan(7, 7, ELSEWHERE.signature, current_state_id="b", holders=("b",))
WHOLE = lay_out_in_order("average", SPECS, [3, 2, 1, 0], 1 << 20, 1 << 20)
REORDERED = lay_out_in_order("average", SPECS, [0, 1, 2, 3], 4 * ROW, 4 * ROW)


def test_in_a_job_that_just_trains_it_may() -> None:
    assert why_not_early(place(), a_call(), 2) == ""
    adopted = replace(BEHIND, call=7)
    assert why_not_early(place(session=session(adopted)), a_call(), 2) == "", "it has what the others gave it"
    assert why_not_early(place(session=session(LIKE_THIS, expected=None)), a_call(), 2) == "", "the last call was such a one"
    assert why_not_early(place(session=session(expected=ELSEWHERE)), a_call(ELSEWHERE), 2) == "", "on a device, not the first"


@pytest.mark.parametrize(
    ("plane", "call", "min_size", "reason"),
    [
        (place(phase=Phase.FROZEN), a_call(), 1, "no view is active"),
        (place(phase=Phase.WAITING, session=None), a_call(), 1, "no view is active"),
        (place(), a_call(), 3, "too few members"),
        (place(session=Session(VIEW, SalvagePlan(7, 7), "a", {"a": 0}, None)), a_call(), 1, "too few members"),
        (place(), a_call(WHOLE), 1, "only bucket"),
        (place(newcomer=True), a_call(), 1, "does not have the state"),
        (place(level=False), a_call(), 1, "does not have the state"),
        (place(lag=LATE), a_call(), 1, "is late"),
        (place(boundary_requested=True), a_call(), 1, "joins or leaves"),
        (place(leaving=lambda: True), a_call(), 1, "joins or leaves"),
        (place(session=session(BEHIND)), a_call(), 1, "have finished this call"),
        (place(session=session(replace(BEHIND, adoptions=()), keeps=True)), a_call(), 1, "have finished this call"),
        (place(session=session(expected=None)), a_call(), 1, "expect another"),
        (place(session=session(expected=REORDERED)), a_call(), 1, "expect another"),
        (place(session=session(LIKE_THIS, expected=None)), a_call(REORDERED), 1, "expect another"),
        (place(session=session(LIKE_THERE, expected=None)), a_call(ELSEWHERE), 1, "wait for accelerators"),
    ],
)
def test_each_reason_against_it(plane: Plane, call: OpenCall, min_size: int, reason: str) -> None:
    assert reason in why_not_early(plane, call, min_size)


# --- one member's part --------------------------------------------------------------------------------------------------


class Work:
    """An operation that ends when the test says so."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.ended = tensor, False
        self.patience = 0.0
        self.waited: list[float] = []
        self.error: GroupError | None = None

    def done(self) -> bool:
        return self.ended

    def wait(self, timeout: float) -> bool:
        self.waited.append(timeout)
        assert self.ended or self.patience, "nothing may wait here"
        if self.error is not None:
            raise self.error
        return self.ended


@dataclass
class Stand:
    """Open calls of member "a" with a group that does nothing by itself."""

    works: list[Work] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)
    over: bool = False
    expected: Layout | None = LAYOUT
    ends_at_once: bool = False

    def __post_init__(self) -> None:
        group: Any = SimpleNamespace(submit=self._submit)
        self.session = session(group=group, expected=self.expected)
        self.plane: Any = SimpleNamespace(
            begin=lambda _session: not self.over,
            current=None,
            results=None,
            needed=(),
            entered=lambda: None,
            session=self.session,
        )
        failures: Any = SimpleNamespace(
            report=lambda _call, _session, error: self.reported.append(str(error)),
            abandon=lambda: self.reported.append("abandoned"),
        )
        waits: Any = SimpleNamespace(now=lambda: 0.0)
        self.calls = OpenCalls(self.plane, failures, waits, CallLock(1.0), 1)
        self.owners = [torch.nn.Parameter(torch.zeros(ROW)) for _ in SPECS]
        for number, owner in enumerate(self.owners):
            owner.grad = torch.full((ROW,), float(number))

    def _submit(self, operation: Operation) -> Work:
        self.works.append(Work(operation[1]))
        if self.ends_at_once:
            number = len(self.works) - 1
            self.works[-1].ended = True
            if number < 2:
                self._agree(self.works[-1])
        return self.works[-1]

    def _agree(self, work: Work) -> None:
        """The other member says the same."""
        half = self.session.codec.elements // 2
        work.tensor[-half:] = work.tensor[-2 * half : -half]

    def enter(self, layout: Layout = LAYOUT, weight: float = 1.0) -> OpenCall:
        call = a_call(layout, self.owners, weight)
        self.plane.current = call
        self.calls.enter(call, self.session, Staging(layout, 2), RankRecord(weight, 0, 0, layout.check))
        return call

    def end(self, number: int, error: str = "") -> None:
        work = self.works[number]
        work.ended, work.error = True, GroupError(error) if error else None
        if number <= (self.expected is None) and not error:  # a prelude, and the head
            self._agree(work)

    def differ(self, number: int) -> None:
        """The operation ends; the other member has entered another call."""
        self.end(number)
        half = self.session.codec.elements // 2
        self.works[number].tensor[-half:] = self.works[number].tensor[-half:].flip(0)

    def run(self, call: OpenCall) -> Any:
        attempt = self.calls.take(call)
        assert attempt is not None
        self.end(0)
        attempt.poll()
        while attempt.begun < attempt.count:
            attempt.begin()
            self.end(attempt.begun - 1)
        return attempt.run(attempt.record, 2)


def test_the_head_goes_first_and_the_others_follow_when_it_has_ended() -> None:
    stand = Stand()
    stand.enter()
    stand.calls.advance(3)
    assert len(stand.works) == 1, "the others may need what the next buckets' slots hold"
    stand.calls.advance(3)
    assert len(stand.works) == 1
    stand.end(0)
    stand.calls.advance(3)
    assert len(stand.works) == 3
    stand.calls.advance(4)
    assert len(stand.works) == 3, "the last one waits for the end of backward"
    assert [work.tensor[0].item() for work in stand.works] == [1.5, 1.0, 0.5], "halves: two members, and each weighs one"


def test_the_first_call_of_a_session_begins_with_a_prelude() -> None:
    stand = Stand(expected=None)
    call = stand.enter()
    stand.calls.advance(1)
    stand.calls.advance(3)
    assert [work.tensor.dtype for work in stand.works] == [torch.uint8], "some may be in another call"
    stand.end(0)
    stand.calls.advance(3)
    assert len(stand.works) == 2, "the head"
    attempt = stand.calls.take(call)
    assert attempt is not None
    for number in range(1, 5):
        stand.end(number)
        attempt.poll()
        if number < 4:
            attempt.begin()
    _, results = attempt.run(attempt.record, 2)
    assert [slot.data[0].item() for slot in results.slots] == [1.5, 1.0, 0.5, 0.0]


def test_what_backward_did_not_reach_before_its_end_begins_with_a_prelude_as_well() -> None:
    stand = Stand(expected=None)
    call = stand.enter()
    attempt = stand.calls.take(call)
    assert attempt is not None
    stand.ends_at_once = True
    _, results = attempt.run(attempt.record, 2)
    assert len(stand.works) == 5
    assert len(results.slots) == 4


def test_a_prelude_shows_who_has_entered_another_call() -> None:
    stand = Stand(expected=None)
    call = stand.enter()
    stand.calls.advance(2)
    stand.differ(0)
    stand.calls.advance(3)
    assert len(stand.works) == 1
    assert "members entered" in stand.reported[0]
    attempt = stand.calls.take(call)
    assert attempt is not None
    with pytest.raises(Disagreement):
        attempt.run(attempt.record, 2)


def test_a_head_without_data_has_a_small_bucket_beside_it() -> None:
    bare = replace(LAYOUT, buckets=(Bucket(torch.uint8, 0, "SUM", ()), *LAYOUT.buckets), spares=2)
    stand = Stand()
    stand.enter(bare)
    stand.calls.advance(4)
    assert len(stand.works) == 2


def test_a_failure_is_reported_at_the_next_bucket_once() -> None:
    stand = Stand()
    call = stand.enter()
    stand.calls.advance(1)
    stand.end(0, "connection reset")
    assert not stand.reported
    stand.calls.advance(2)
    assert stand.reported == ["connection reset"]
    stand.calls.advance(3)
    assert stand.reported == ["connection reset"]
    assert len(stand.works) == 1, "nothing more is begun"
    attempt = stand.calls.take(call)
    assert attempt is not None
    with pytest.raises(GroupError, match="connection reset"):
        attempt.run(attempt.record, 2)


def test_a_session_that_is_over_on_entry_is_left_to_the_end() -> None:
    stand = Stand(over=True)
    call = stand.enter()
    stand.calls.advance(4)
    assert not stand.works
    assert not stand.reported
    attempt = stand.calls.take(call)
    assert attempt is not None
    with pytest.raises(GroupError, match="over before"):
        attempt.run(attempt.record, 2)


def test_a_gradient_that_changes_voids_what_was_sent() -> None:
    stand = Stand()
    call = stand.enter()
    stand.calls.advance(1)
    stand.calls.restart()
    stand.calls.restart()
    stand.end(0)
    stand.calls.advance(4)
    assert len(stand.works) == 1
    assert not stand.reported, "a member may still be in the call before; and none can go on without this one's backward"
    attempt = stand.calls.take(call)
    assert attempt is not None
    with pytest.raises(GroupError, match="changed after it was sent"):
        attempt.run(attempt.record, 2)


def test_a_gradient_is_staged_at_once_where_nobody_needs_the_slot() -> None:
    stand = Stand()
    call = stand.enter(weight=2.0)
    filled = []
    fill = call.fill
    call.fill = lambda slot, *more, but: filled.append(set(but)) or fill(slot, *more, but=but)  # type: ignore[method-assign,func-returns-value]
    stand.calls.advance(1)
    stand.calls.stage(1, 2)
    assert not call.ahead(LAYOUT.buckets[1]), "others may be in the call before"
    stand.end(0)
    for bucket, index in enumerate((2, 1, 0), start=1):
        stand.calls.stage(bucket, index)
    with torch.no_grad():
        stand.owners[1].grad.add_(4.0)  # type: ignore[union-attr]
        stand.owners[0].grad = torch.full((ROW,), 7.0)
    _, results = stand.run(call)
    assert filled == [set(), {2}, set(), set()], "what has changed, or is another tensor, is staged again"
    assert [slot.data[0].item() for slot in results.slots] == [3.0, 2.0, 5.0, 7.0]


def test_a_failure_is_reported_when_a_gradient_is_staged() -> None:
    stand = Stand()
    stand.enter()
    stand.calls.advance(1)
    stand.end(0, "connection reset")
    stand.calls.stage(1, 2)
    assert stand.reported == ["connection reset"]


@pytest.mark.parametrize("changed", [True, False])
def test_before_giving_up_what_nobody_could_give_on_others_may_finish_it(changed: bool) -> None:
    stand = Stand()
    stand.plane.results = SimpleNamespace(changed=changed)
    stand.enter()
    stand.calls.advance(1)
    stand.works[0].patience = 1.0
    stand.calls.abandon()
    assert stand.reported == ["abandoned"]
    assert stand.works[0].waited == ([1.0, 0.1] if changed else [0.1])


def test_giving_it_up_is_said_once_and_leaves_no_call() -> None:
    stand = Stand()
    call = stand.enter()
    stand.calls.advance(1)
    stand.end(0)
    stand.calls.abandon()
    stand.calls.abandon()
    assert stand.reported == ["abandoned"]
    assert stand.calls.take(call) is None
    stand.calls.advance(4)
    stand.calls.restart()
    assert len(stand.works) == 1


def test_another_call_is_not_the_one_that_is_open() -> None:
    stand = Stand()
    call = stand.enter()
    assert stand.calls.take(a_call()) is None
    assert stand.calls.take(call) is not None


@pytest.mark.parametrize(("weight", "divisor"), [(1.0, 1.0), (2.0, 1.0), (3.0, 4.0), (0.0, 4.0)])
def test_inputs_are_divided_by_what_the_session_had_last(weight: float, divisor: float) -> None:
    stand = Stand()
    stand.session.ended(LAYOUT, divisor)
    call = stand.enter(weight=weight)
    stand.calls.advance(1)
    assert torch.equal(stand.works[0].tensor[:ROW], torch.full((ROW,), 3.0 * weight / divisor))
    _, results = stand.run(call)
    assert results.assumed == divisor
    assert results.weight == 2 * weight
    assert stand.session.divisor == (2 * weight or divisor), "a call without any weight changes nothing"
    assert stand.session.expected is LAYOUT


# --- the handle ---------------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What an ``OpenAverage`` asks for."""

    opens: bool = True
    done: list[object] = field(default_factory=list)

    def begin_open(self, _call: OpenCall) -> bool:
        self.done.append("begin")
        return self.opens

    def advance_open(self, complete: int) -> None:
        self.done.append(complete)

    def stage_open(self, number: int, index: int) -> None:
        self.done.append(("stage", number, index))

    def restart_open(self) -> None:
        self.done.append("restart")

    def finish_open(self, _call: OpenCall, *, opened: bool) -> Any:
        self.done.append("finish" if opened else "whole")

    def abandon_open(self, _call: OpenCall) -> None:
        self.done.append("abandon")


BARE = replace(LAYOUT, buckets=(Bucket(torch.uint8, 0, "SUM", ()), *LAYOUT.buckets), spares=2)


def test_buckets_are_pushed_in_order() -> None:
    average = OpenAverage(a_call(), Told())
    average.push(0)
    for wrong in (0, 2):
        with pytest.raises(ValueError, match="bucket 1 comes next"):
            average.push(wrong)


@pytest.mark.parametrize("opens", [True, False])
def test_it_is_entered_with_its_first_data_or_else_at_the_end(opens: bool) -> None:
    told = Told(opens)
    average = OpenAverage(a_call(BARE), told)
    average.push(0)
    assert not told.done, "a head without data is there before any gradient"
    average.push(1)
    average.push(2)
    average.restart()
    average.finish()
    average.abandon()
    assert told.done == (["begin", 2, 3, "restart", "finish"] if opens else ["begin", "begin", "whole"])


def test_what_forbids_it_may_be_over_at_a_later_bucket() -> None:
    told = Told(opens=False)
    average = OpenAverage(a_call(), told)
    average.push(0)
    told.opens = True
    average.push(1)
    average.push(2)
    average.finish()
    assert told.done == ["begin", "begin", 2, 3, "finish"]


def test_what_was_given_up_is_pushed_no_more() -> None:
    told = Told()
    average = OpenAverage(a_call(), told)
    average.push(0)
    average.abandon()
    average.abandon()
    average.push(1)
    assert told.done == ["begin", 1, "abandon"]


def test_nobody_sees_it_in_its_call_before_it_is_known_to_compute_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A donor would read buffers that backward is about to change, and a flush report would say that the call is certain."""
    opening, seen, entered = False, list[bool](), TimeUse.entered

    def look(plane: Plane) -> None:
        free = plane.changed.acquire(blocking=False)
        seen.append(free and plane.in_call(plane.finished + 1))
        if free:
            plane.changed.release()

    with company(2) as crew:

        def entering(use: TimeUse, now: float) -> None:
            entered(use, now)
            if opening:
                at_once(*(functools.partial(look, ft._plane) for ft in crew.members if ft._plane.counters.time_use is use))

        monkeypatch.setattr(TimeUse, "entered", entering)
        programs = []
        for ft in crew.members:
            model = nn.Sequential(nn.Linear(20, 20, bias=False), nn.Linear(20, 20, bias=False))
            layout = ft.lay_out_average(model, list(model.parameters()), range(2), bucket_bytes=1600, first_bytes=1600)
            programs.append((ft, model, layout))
        at_once(*(functools.partial(ft.register_state, model=model) for ft, model, _ in programs))
        for early in (False, True):  # the first call of a view is entered at its end
            averages, opening = list[OpenAverage](), early
            for ft, model, layout in programs:
                for owner in model.parameters():
                    owner.grad = torch.ones(20, 20)
                again = functools.partial(lambda layout: layout, layout)
                averages.append(ft.open_average(list(model.parameters()), layout, again, module=model))
                averages[-1].push(0)
                assert averages[-1]._opened is early
            opening = False
            assert all(at_once(*(average.finish for average in averages)))
    assert seen == [False, False]
