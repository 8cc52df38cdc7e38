"""How a joiner asks what the others are doing."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest.mock import ANY, Mock, call

import pytest

from consensus import Member
from ftlib.common.counters import UNKNOWN
from ftlib.common.traces import RecoveryRecord, Traces
from ftlib.core.calls.call import Kind
from ftlib.core.calls.learner import NoFollowing
from ftlib.core.plane.plane import Plane
from ftlib.core.plane.progress import Progress
from ftlib.errors import GroupError
from ftlib.recovery import catchup
from ftlib.recovery.catchup import Catchup
from ftlib.recovery.joiner.http_transport import HTTPTransport, Later, Over, SnapshotOffer
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.prefetch import Prefetch
from ftlib.recovery.layout.shards import LARGE, SMALLEST, ChunkRequest
from ftlib.recovery.warm_standby import WarmStandby
from tests.harness.threads import Clock, no_threads


def test_it_asks_for_a_layout_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not in that call yet may be soon: to ask at once would be to use up all questions in a moment."""
    plane, waits = Plane("a" * 16), list[str]()
    monkeypatch.setattr(plane, "wait_end", lambda _session, seconds: waits.append(f"{seconds:g} s"))
    source = Mock()
    source.layout.side_effect = [Later("not there yet"), Later("not there yet"), "found"]
    session = Mock()
    session.plan.holders = ("b", "c")
    recovery = Catchup(plane, lambda: None, lambda: source, RecoveryLimits(1.0, 1, live=True))
    assert recovery.layout(session, b"start") == "found"
    assert waits == ["0.05 s"] * 2
    source.layout.side_effect = Later("not there yet")
    with pytest.raises(GroupError):
        recovery.layout(session, b"start")
    assert waits == ["0.05 s"] * (2 + 6), "three times each"


def test_whose_replay_leads_elsewhere_follows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lead there again: from now on the others wait while it loads, and as a spare it does without."""
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    begun, own = Mock(), Mock(kind=Kind.AVERAGE)
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True), begun)
    verification = Mock()
    verification.holds.return_value = False
    with pytest.raises(NoFollowing, match="not what the others have"):
        recovery._verified(verification)
    recovery.stand_by(own)
    assert not begun.called


@pytest.mark.parametrize("error", [MemoryError("none left"), RuntimeError("can't start new thread")])
def test_what_is_short_for_a_moment_ends_the_following_not_the_program(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    verification, prefetch = Mock(), Mock()
    verification.holds.side_effect = prefetch.result.side_effect = error
    with pytest.raises(NoFollowing, match=str(error)):
        recovery._verified(verification)
    with pytest.raises(NoFollowing, match=str(error)):
        recovery._begin(prefetch)
    with pytest.raises(NoFollowing, match=str(error)):
        recovery._verified(Mock(**{"holds.return_value": True, "load.side_effect": error}))
    recovery._own, recovery._round = Mock(), Mock()
    recovery._verification = Mock(number=6, begun=False, **{"begin.side_effect": error})  # a thread that reads
    with pytest.raises(NoFollowing, match=str(error)):
        recovery.finished(Mock(number=6))
    recovery._round = None
    monkeypatch.setattr(catchup, "Prefetch", Mock(side_effect=error))  # its thread
    monkeypatch.setattr(catchup, "separable", lambda _registered: False)
    session = Mock()
    session.plan.holders, session.view.index.return_value = ("b",), 1
    with pytest.raises(NoFollowing, match=str(error)):
        recovery.enter(session, 7)
    assert recovery._refused


def test_without_threads_it_does_without_what_they_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spare loads the state once it is promoted, and members drop what they keep for this one by and by."""
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    plane, own, donor = Plane("a" * 16), Mock(kind=Kind.AVERAGE), Member("b" * 16, "10.0.0.1", 1)
    own.layout.places = ()
    limits, transport = RecoveryLimits(1.0, 1, live=True), HTTPTransport(None, plane.member_id)

    def standby(registered: Any, call: Any) -> WarmStandby:
        return WarmStandby(plane, registered, call, transport, lambda: None, 1, limits)

    recovery = Catchup(plane, Mock(), lambda: transport, limits, standby, known=lambda: [donor])
    recovery._asked[donor.id] = donor
    with no_threads("ftlib") as refused:
        recovery.look_ahead(own, Mock())
        recovery.stand_by(own)
        recovery.end()
    assert refused == ["ftlib-ahead", "ftlib-standby", "ftlib-release"]
    assert recovery.trouble is None


def test_what_kept_the_state_of_a_spare_level_ends_with_its_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    standby = Mock()
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True), Mock(return_value=standby))
    own = Mock(kind=Kind.AVERAGE)
    own.layout.places = ()
    recovery.stand_by(own)
    recovery.end()
    standby.end.assert_called_once_with()


def test_what_is_under_way_ends_with_the_recovery() -> None:
    """A round that has begun before its call has ended writes the state as any other one."""
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    begun, round_, verification = Mock(), Mock(), Mock()
    asked = Prefetch[Any, Any](Mock(), 7, Mock(), lambda: True, lambda _offer: begun)
    asked.result()
    recovery._prefetch, recovery._round, recovery._verification = asked, round_, verification
    recovery._own, recovery._slot_pool = Mock(), Mock()
    recovery.end()
    assert recovery._own is None, "it has all gradients of the program's"
    recovery._slot_pool.close.assert_called_once_with()
    assert asked._over, "a request under way ends, and begins nothing"
    assert [each.call_count for each in (begun.end, round_.end, verification.close)] == [1, 1, 1]
    assert recovery._prefetch is recovery._round is recovery._verification is None


def test_a_comparison_of_another_call_than_the_programs_is_made_again_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a random distance, as a program may repeat calls of several kinds, and only one of them is like its first."""
    made, first = Mock(), Mock(number=7)
    monkeypatch.setattr(catchup, "Verification", made)
    monkeypatch.setattr(catchup.random, "randrange", lambda stop: stop - 1)
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._own, recovery._verification = Mock(), first
    assert not recovery.finished(Mock(number=8))
    first.close.assert_called_once_with()
    recovery._near_the_end(Mock(), Mock(), 9, 10)
    assert made.call_args.args[2] == 11


def test_nothing_of_the_programs_is_under_way_when_other_threads_begin_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on there is nothing to wait for."""
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    monkeypatch.setattr(catchup, "settle", settled := Mock())
    plane, own = Plane("a" * 16), Mock(kind=Kind.AVERAGE)
    plane.current_state_id, plane.state_places, own.layout.places = "origin", ("gpu 0",), ("gpu 1",)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    for _ in range(2):
        assert recovery.wanted(own, Mock())
        settled.assert_called_once_with({"gpu 0", "gpu 1"})
    standby = Mock(**{"return_value.begin": lambda: settled.assert_called_with({"gpu 0", "gpu 1"})})
    settled.reset_mock()
    Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True), standby).stand_by(own)
    assert standby.called


def test_the_time_before_a_call_in_which_it_follows_says_nothing_of_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would take it for a slow one: its program may have waited, and computes nothing while it follows."""
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    plane, own = Plane("a" * 16), Mock(kind=Kind.AVERAGE)
    plane.current_state_id, own.layout.places = "origin", ()
    use = plane.counters.time_use
    for now in (8.0, 20.0):
        use.entered(now)
        use.left(now + 1.0)
    assert use.outside == 11.0
    assert Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)).wanted(own, Mock())
    assert use.outside == UNKNOWN


def test_the_shards_of_a_later_chunk_are_those_of_its_own_bytes() -> None:
    """As the donors cut them, who answer how many there are."""
    chunks, holders = ((0, 5 * SMALLEST), (5 * SMALLEST, 8 * SMALLEST - 1)), ("b", "c")
    session, offer = Mock(**{"plan.holders": holders}), SnapshotOffer(8 * SMALLEST - 1, 3, b"", chunks)
    shards = catchup._shards_of(offer, session, 0, 9, ChunkRequest(number=1, first=5))
    assert [(shard.start, shard.stop) for shard in shards] == [
        (5 * SMALLEST, 6 * SMALLEST),
        (6 * SMALLEST, 7 * SMALLEST),
        (7 * SMALLEST, 8 * SMALLEST - 1),
    ]
    assert [(shard.index, shard.version) for shard in shards] == [(5, 9), (6, 9), (7, 9)]


def test_the_traces_have_the_whole_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    plane = Plane("a" * 16, traces=Traces())
    monkeypatch.setattr(plane, "caught_up", lambda *_: True)
    recovery, round_ = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock(session=None)
    round_.progress.return_value = Progress(1200, 1200, 400.0, 0.0, 0, braking=False, replayed=5, seconds=3.0)
    recovery._round = round_
    with monkeypatch.context() as patch:
        patch.setattr(plane, "caught_up", lambda *_: False)
        assert not recovery._caught_up(41), "the view has ended"
    assert recovery._caught_up(41)
    assert (plane.counters.recoveries, plane.counters.averages_replayed) == (1, 5)
    round_.progress_log.caught_up.assert_called_once_with(41)
    assert plane.traces is not None
    [record] = plane.traces.take()
    assert isinstance(record, RecoveryRecord)
    assert record.ended - record.began == pytest.approx(3.0)
    assert (record.nbytes, record.replayed, record.call, record.waited_for) == (1200, 5, 42, False)


def test_the_others_wait_for_so_long_from_the_call_on_for_which_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    plane = Plane("a" * 16, threads=clock)
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    plane.finished = 6
    go_on = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))._while_acting(Mock(), 7)
    clock.at += 5.0
    assert go_on(), "call 7 is under way: nobody waits yet"
    plane.finished = 7
    clock.at += 0.75
    assert go_on()
    clock.at += 0.75
    assert not go_on()
    plane.finished = 8
    assert not go_on()


@pytest.mark.parametrize(
    ("nbytes", "chunks", "early"), [(LARGE - 1, 1, True), (LARGE, 1, False), (LARGE - 1, 2, False), (LARGE, 2, False)]
)
def test_a_small_state_is_compared_before_all_of_it_is_here(nbytes: int, chunks: int, early: bool) -> None:
    """It will be, by the time of the call for which the donors are asked."""
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    offer = SnapshotOffer(nbytes, 1, b"", ((0, nbytes),) * chunks)
    recovery._begin(Mock(**{"result.return_value": offer}))
    assert bool(recovery._hopes) == early


def test_it_is_given_up_after_a_few_failures() -> None:
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    for _ in range(catchup._TRIES - 1):
        recovery._failed("b is away")
    recovery._stop()  # a new view, without that donor: it begins anew
    for _ in range(catchup._TRIES - 1):
        recovery._failed("c is away")
    assert not recovery._refused
    with pytest.raises(NoFollowing, match="c is away"):
        recovery._failed("c is away")
    assert recovery._refused


@pytest.mark.parametrize(("same_session", "number", "stays"), [(True, 9, True), (True, 8, False), (False, 9, False)])
def test_a_comparison_is_of_this_view_and_of_a_call_that_is_not_over(
    same_session: bool, number: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "Verification", made := Mock())
    recovery, session = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock()
    recovery._hopes = 2
    first = recovery._verification = Mock(session=session if same_session else Mock(), number=number)
    recovery._near_the_end(Mock(**{"level_with.return_value": False}), session, 9, 10)
    assert (recovery._verification is first) == stays == (not made.called) == (not first.close.called)
    assert recovery._hopes == (2 if stays else 1)


@pytest.mark.parametrize(("verified", "level"), [(0, False), (7, True), (8, False)])
def test_before_each_call_the_others_wait_if_they_have_to(verified: int, level: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plane, session = Plane("a" * 16), Mock()
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    round_ = recovery._round = Mock(session=session, next_chunk=None, **{"level_with.return_value": False})
    recovery._verification = Mock(number=verified) if verified else None
    assert recovery.enter(session, 7)
    round_.apply_backpressure.assert_called_once_with(session, 7, level=level)
    round_.level_with.assert_called_once_with(7, but=1)
    round_.progress_log.update.assert_called_once_with()


def test_a_promoted_spare_whose_view_ends_meanwhile_goes_on_in_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, standby, session = Plane("a" * 16), Mock(asked={}), Mock()
    monkeypatch.setattr(plane, "acting_in", lambda _session: False)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._standby = standby
    assert not recovery.enter(session, 8)
    assert not standby.surrender.called and recovery._standby is standby


def test_a_promoted_spare_waits_for_the_last_record_before_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an average would be missing, and the state would have to come again."""
    plane, standby = Plane("a" * 16), Mock(asked={})
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    standby.surrender.side_effect = NoFollowing("enough is known")
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._standby = standby
    with pytest.raises(NoFollowing):
        recovery.enter(Mock(), 8)
    assert standby.mock_calls == [call.await_call(7, ANY), call.surrender(8)]


def test_what_comes_too_late_for_a_views_first_call_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked about the next call then, from which on a late answer counts."""
    plane, source, session = Plane("a" * 16), Mock(), Mock()
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    monkeypatch.setattr(catchup, "separable", lambda _registered: False)
    session.plan.holders, session.view.index.return_value = ("b", "c"), 0
    recovery = Catchup(plane, Mock(), lambda: source, RecoveryLimits(1.0, 1, live=True))
    recovery._own = Mock()
    late = Over("too late")
    source.offer.side_effect = [SnapshotOffer(8, 1, b"", ((0, 8),), {"c": late}), late, late]
    found = []
    for number in (5, 6, 7):
        assert recovery._enter(session, number)
        assert recovery._prefetch is not None
        found.append(recovery._prefetch.version)
        results = Mock(number=number)
        assert not recovery.finished(results), "the state is not here"
        assert recovery.kept(results) is None
        found.append(recovery._ahead)
    assert found == [5, 0, 6, 1, 8, 1]


def test_the_first_request_of_a_view_is_about_the_next_call_if_the_others_may_be_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As they may if a recovery is under way: it goes on meanwhile."""
    plane, session = Plane("a" * 16), Mock()
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    monkeypatch.setattr(recovery, "_ask", asked := Mock())
    round_ = recovery._round = Mock(session=session, **{"level_with.return_value": False})
    for number in (9, 10):
        assert recovery.enter(session, number)
    assert asked.call_args_list == [call(session, round_, 10), call(session, round_, 10)]


@pytest.mark.parametrize("written", [True, False])
def test_a_spare_that_need_not_follow_gives_nothing_if_its_parameters_were_written(written: bool) -> None:
    """Its gradients were computed with what was there before."""
    recovery, own, standby = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock(), Mock()
    recovery._standby = standby
    standby.end.return_value = written
    for _ in range(2):
        assert not recovery.wanted(own, Mock()), "nobody has a state"
        standby.end.assert_called_once_with()
        assert own.reloaded.call_count == written


def test_a_spare_that_follows_goes_on_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    plane, own = Plane("a" * 16), Mock(kind=Kind.AVERAGE)
    plane.current_state_id, own.layout.places = "origin", ()
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._standby = standby = Mock()
    assert recovery.wanted(own, Mock())
    assert recovery._standby is standby and not standby.end.called and not own.reloaded.called


@pytest.mark.parametrize("verified", [0, 8, 7])
@pytest.mark.parametrize("kind", ["average", "vote"])
def test_who_averages_something_else_than_the_others_follows_no_more(verified: int, kind: str) -> None:
    """Whether the end is near or not. Calls of other kinds may come between."""
    recovery, results = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock(number=7)
    recovery._own = Mock(**{"layout.kind": "average", "layout.same_call.return_value": False})
    recovery._verification = Mock(number=verified) if verified else None
    results.layout.kind = kind
    with pytest.raises(NoFollowing, match="the others average something else") if kind == "average" else nullcontext():
        assert not recovery.finished(results)
    assert recovery._refused == (kind == "average")


@pytest.mark.parametrize(
    ("same", "healed", "state_id", "moves", "goes_on"),
    [
        (True, False, "o", False, True),
        (False, False, "o", True, True),
        (False, False, "o", False, False),
        (False, True, "o", True, False),  # the others went on without it, and it lacks averages
        (False, False, "p", True, False),
    ],
)
def test_in_a_new_view_it_goes_on_with_what_it_has_if_nothing_is_missing(
    same: bool, healed: bool, state_id: str, moves: bool, goes_on: bool
) -> None:
    plane, session = Plane("a" * 16), Mock()
    plane.current_state_id, session.plan.healed = "o", (plane.member_id,) if healed else ()
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    round_ = Mock(session=session if same else Mock(), state_id=state_id, **{"move.return_value": moves})
    assert recovery._goes_on(round_, session, 9) == goes_on
    if not same and goes_on:
        round_.move.assert_called_once_with(session, 9)


@pytest.mark.parametrize(
    ("current_state_id", "state_id", "holders", "lacks"),
    [
        ("o", "", ("b",), True),
        ("o", "p", ("b",), True),
        ("o", "o", ("b",), False),
        ("", "", ("b",), False),
        ("o", "", (), False),
    ],
)
def test_who_has_the_state_or_finds_nobody_who_has_it_does_not_follow(
    current_state_id: str, state_id: str, holders: tuple[str, ...], lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    plane, own, session = Plane("a" * 16), Mock(kind=Kind.AVERAGE), Mock()
    plane.current_state_id, plane.state_id, session.plan.holders, own.layout.places = current_state_id, state_id, holders, ()
    assert Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)).wanted(own, session) == lacks


@pytest.mark.parametrize(("parts", "chunk"), [(True, ChunkRequest(keep=7)), (False, None)])
def test_who_begins_anew_begins_with_the_first_chunk(
    parts: bool, chunk: ChunkRequest | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or with the whole state, if its parts cannot be of different versions."""
    monkeypatch.setattr(catchup, "Prefetch", made := Mock())
    monkeypatch.setattr(catchup, "separable", lambda _registered: parts)
    session, source = Mock(), Mock()
    session.plan.holders, session.view.index.return_value = ("b",), 0
    recovery = Catchup(Plane("a" * 16), Mock(), lambda: source, RecoveryLimits(1.0, 1, live=True))
    recovery._own, recovery._chunk = Mock(), ChunkRequest(2, 9, 4)
    recovery._ask(session, None, 7)
    made.call_args.args[2](lambda: True)
    assert source.offer.call_args.kwargs["chunk"] == chunk


@pytest.mark.parametrize(("number", "level", "begins"), [(9, True, True), (9, False, False), (10, True, False)])
def test_its_state_is_read_in_the_call_on_entry_to_which_it_is_compared(number: int, level: bool, begins: bool) -> None:
    recovery, session = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock()
    recovery._verification = verification = Mock(session=session, number=number)
    recovery._near_the_end(Mock(**{"level_with.return_value": level}), session, 9, 10)
    assert verification.begin.called == begins


def test_an_average_that_waits_keeps_its_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one comes in others: in those of averages that are replayed, and in new ones."""
    recovery, results = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock(number=7)
    recovery._own, round_ = Mock(**{"void.return_value": False}), Mock(state_id="o")
    recovery._round = round_
    monkeypatch.setattr(recovery._slot_pool, "kept", lambda *_: ["new"])
    for spare, instead in ((["replayed"], ["replayed", "new"]), ([], ["new"]), (None, None)):
        round_.keep.return_value = spare
        assert recovery.kept(results) == instead


@pytest.mark.parametrize(("same", "void", "applied"), [(True, False, True), (True, True, False), (False, False, False)])
def test_only_what_the_program_would_have_applied_is_replayed(same: bool, void: bool, applied: bool) -> None:
    recovery, results = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock(number=7)
    recovery._own = Mock(**{"void.return_value": void, "layout.same_call.return_value": same})
    recovery._round = round_ = Mock(state_id="o", **{"keep.return_value": None})
    assert recovery.kept(results) is None
    round_.keep.assert_called_once_with(7, results if applied else None, 0)


def test_a_spare_has_one_standby_if_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "why_not", lambda _registered: "")
    own, standby = Mock(kind=Kind.AVERAGE, **{"layout.places": ()}), Mock()
    for made in (None, standby):
        recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True), made)
        for _ in range(2):
            recovery.stand_by(own)
    assert standby.call_count == 1


@pytest.mark.parametrize(("same_session", "version", "stays"), [(True, 9, True), (True, 8, False), (False, 9, False)])
def test_a_request_is_of_this_view_and_of_a_call_that_is_not_over(
    same_session: bool, version: int, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, session = Plane("a" * 16), Mock()
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._prefetch = first = Mock(session=session if same_session else Mock(), version=version)
    monkeypatch.setattr(recovery, "_ask", asked := Mock())
    assert recovery.enter(session, 9)
    assert (not first.close.called) == stays == (not asked.called)


@pytest.mark.parametrize("arrives", [True, False])
def test_the_others_wait_a_moment_for_the_rest_of_a_small_state(arrives: bool) -> None:
    """That call is the one on entry to which it is compared: else it would follow one more."""
    recovery, session = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Mock()
    verification = Mock(number=7, session=session, begun=False)
    verification.begin.side_effect = lambda: setattr(verification, "begun", True)
    round_ = recovery._round = Mock()
    round_.apply_backpressure.side_effect = lambda *_, **__: round_.level_with.configure_mock(return_value=arrives)
    round_.level_with.return_value = False
    assert recovery._looks(verification) == arrives
    round_.apply_backpressure.assert_called_once_with(session, 7, level=True, grace=catchup._GRACE)


def test_a_comparison_without_an_answer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made again, but not for ever."""
    plane = Plane("a" * 16)
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    monkeypatch.setattr(plane, "wait_end", lambda *_: None)
    recovery = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    verification = Mock(**{"holds.side_effect": Later("b: it is busy")})
    for _ in range(catchup._TRIES - 1):
        assert not recovery._verified(verification)
    with pytest.raises(NoFollowing, match="b: it is busy"):
        recovery._verified(verification)
    assert not verification.load.called


def test_what_is_being_compared_is_not_read_again() -> None:
    recovery = Catchup(Plane("a" * 16), Mock(), Mock(), RecoveryLimits(1.0, 1, live=True))
    recovery._round, verification = Mock(), Mock(begun=True)
    assert recovery._looks(verification)
    assert not verification.begin.called and not recovery._round.apply_backpressure.called


def test_only_who_asks_too_late_asks_further_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other request without an answer is a failure; so is one that comes too late however early it is sent."""
    plane = Plane("a" * 16)
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    monkeypatch.setattr(plane, "wait_end", lambda *_: None)
    recovery, late = Catchup(plane, Mock(), Mock(), RecoveryLimits(1.0, 1, live=True)), Over("too late")
    recovery._unanswered(Mock(), Later("it is busy"))
    assert (recovery._ahead, recovery._failures) == (0, 1)
    for _ in range(9):
        recovery._unanswered(Mock(), late)
    assert (recovery._ahead, recovery._failures) == (256, 1)
    recovery._unanswered(Mock(), late)
    assert (recovery._ahead, recovery._failures) == (256, 2)
