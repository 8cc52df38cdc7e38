"""What wakes those who wait for a recovery."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from unittest.mock import Mock, call

import pytest

from consensus import Member
from ftlib import ConfigError, RebuildTimeout
from ftlib.common.traces import FetchRecord, Traces
from ftlib.core.calls.learner import NoFollowing
from ftlib.core.plane.plane import Plane
from ftlib.recovery.joiner import round as rounds
from ftlib.recovery.joiner.group_transport import Tainted
from ftlib.recovery.joiner.http_transport import FetchError, Later, SnapshotOffer
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.round import Round
from ftlib.recovery.layout.shards import LARGE, ChunkRequest, Shard
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread
from tests.harness.threads import Clock

LIMITS = RecoveryLimits(TIMEOUT, 1, live=True)


def test_who_waits_for_the_comparison_is_told_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits without an end of its own: a spare's program has nothing else to do."""
    go, told = threading.Event(), []

    def prepare(*_: object) -> Mock:
        assert go.wait(TIMEOUT)
        return Mock(nbytes=1)

    monkeypatch.setattr(rounds, "prepare", prepare)
    plane = Plane("a" * 16)
    one = Round(plane, Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(2, 0, b"", ()), LIMITS)

    def wait() -> None:
        with pytest.raises(ConfigError, match="2 bytes, this worker's 1") as error:
            one.check_fit()
        told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    eventually(lambda: one._changed._waiters, "it waits")  # type: ignore[attr-defined]
    one.begin()
    assert plane.recovery == one.progress
    assert all(thread.daemon for thread in one._threads), "an error of the program's ends the process"
    go.set()
    waiting.join(TIMEOUT)
    assert told
    one.end()
    assert plane.recovery is None


def test_who_waits_for_the_comparison_goes_on_once_all_tensors_have_their_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    settled, told = list[object](), list[object]()
    monkeypatch.setattr(rounds, "prepare", lambda *_: Mock(nbytes=2))
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(2, 0, b"", ((0, 2),)), LIMITS)
    monkeypatch.setattr(one._chunks, "settle", lambda _registered, flat: settled.append((flat, one.flat)))
    monkeypatch.setattr(one, "_replay_all", lambda: waiting.join(TIMEOUT / 8))
    waiting = in_thread(lambda: told.append(one.check_fit()))
    eventually(lambda: one._changed._waiters, "it waits")  # type: ignore[attr-defined]
    one._run()
    assert told == [None]
    assert settled == [(one.flat, None)], "before anybody fills them"


def test_a_shard_that_nobody_can_give_ends_it_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SPARE_PATIENCE", 0.0)
    shard, plane = Shard(0, 0, 1, 7, ("b",)), Plane("a" * 16)
    made = functools.partial(Round, plane, Mock(), Mock(), Mock(), None)
    lonely = made((), "b", 7, (shard,), SnapshotOffer(1, 1, b"", ()), LIMITS)
    with pytest.raises(NoFollowing, match="nobody is left who could give stripe 0"):
        lonely._none_left(shard)
    made((Member("b", "10.0.0.1", 1),), "b", 7, (shard,), SnapshotOffer(1, 1, b"", ()), LIMITS)._none_left(shard)


@pytest.mark.parametrize("before", [None, NoFollowing("the optimizer raised")])
def test_nobody_loads_the_state_while_an_operation_of_an_aborted_group_may_write_it(before: Exception | None) -> None:
    """Also if that is known only when the round ends, or if the round has failed before."""
    tainted, shard, donor = Tainted("it may still write"), Shard(0, 0, 1, 7, ("b",)), Member("b", "10.0.0.1", 1)

    def give(*_: object) -> None:
        with one._changed:
            assert one._changed.wait_for(lambda: one._over, TIMEOUT)
        raise tainted

    offer, transport = SnapshotOffer(1, 1, b"", ((0, 1),)), Mock(shard=give)
    one = Round(Plane("a" * 16), Mock(), Mock(), transport, None, (donor,), "b", 7, (shard,), offer, LIMITS)
    one.flat = Mock()
    one._threads = [in_thread(functools.partial(one._guarded, one._fetch_all))]
    eventually(lambda: one._taken, "it is on its way")
    if before is not None:
        one._fail(before)
    with pytest.raises(Tainted) as error:
        one.end()
    assert error.value is tainted


@pytest.mark.parametrize(("session", "patience"), [(None, rounds._SPARE_PATIENCE), (Mock(), rounds._PATIENCE)])
def test_a_dead_donor_is_excluded_within_that_time(
    session: Mock | None, patience: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare can begin anew at any time."""
    clock, shard = Clock(), Shard(0, 0, 1, 7, ("b",))
    began, plane = clock.at, Plane("a" * 16, threads=clock)
    one = Round(plane, Mock(), Mock(), Mock(), session, (), "b", 7, (shard,), SnapshotOffer(1, 1, b"", ()), LIMITS)

    def wait(seconds: float) -> None:
        clock.at += seconds

    monkeypatch.setattr(one._changed, "wait", wait)
    with pytest.raises(NoFollowing, match="nobody is left"):
        one._none_left(shard)
    assert clock.at - began == pytest.approx(patience, abs=2 * rounds.LOOK)


def test_the_next_chunk_is_asked_for_while_the_first_is_on_its_way() -> None:
    shards = (Shard(0, 0, 1, 7, ("b",)), Shard(1, 1, 2, 7, ("b",)))
    offer = SnapshotOffer(3, 2, b"", ((0, 2), (2, 3)))
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, shards, offer, LIMITS)
    assert one.next_chunk == ChunkRequest(1, 2, 7)
    one.add(offer, (Shard(2, 2, 3, 9, ("b",)),), 9)
    assert one.next_chunk is None


def test_each_donor_of_a_shard_is_asked_a_few_times_the_one_that_failed_least_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "_SPARE_PATIENCE", 0.0)
    shard, transport = Shard(0, 0, 1, 7, ("b", "c")), Mock()
    transport.shard.side_effect = FetchError("away")
    donors = tuple(Member(name, "10.0.0.1", 1) for name in "bc")
    offer = SnapshotOffer(1, 1, b"", ())
    one = Round(Plane("a" * 16), Mock(), Mock(), transport, None, donors, "b", 7, (shard,), offer, LIMITS)
    one.flat = Mock()

    def fetch() -> None:
        while (donor := one._donor_of(shard)) is not None and transport.shard.call_count < 100:
            assert not one._fetch(shard, donor)

    with pytest.raises(NoFollowing, match="nobody is left"):
        fetch()
    assert [call.args[0].id for call in transport.shard.call_args_list] == ["b", "c"] * rounds._TRIES


def test_what_has_come_of_a_shard_counts_and_need_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    shard, donor, plane = Shard(0, 50, 350, 7, ("b",)), Member("b", "10.0.0.1", 1), Plane("a" * 16, traces=Traces())
    answers = iter([(100, FetchError("b: broke off")), (0, Later("b: it is busy")), (200, None)])
    offsets, waits = list[int](), list[float]()

    def give(_donor: Member, _shard: Shard, _flat: object, offset: int, got: Callable[[int], None], _wanted: object) -> None:
        offsets.append(offset)
        count, error = next(answers)
        got(count)
        if error is not None:
            raise error

    offer = SnapshotOffer(300, 1, b"", ((0, 300),))
    transport = Mock(shard=give)
    one = Round(plane, Mock(), Mock(), transport, None, (donor,), "b", 7, (shard,), offer, LIMITS)
    one.flat = Mock()
    monkeypatch.setattr(one._changed, "wait", waits.append)
    assert [one._fetch(shard, donor) for _ in range(3)] == [False, False, True]
    assert waits == [rounds.LOOK], "who is too busy is not asked as fast as can be"
    assert offsets == [0, 100, 100]
    assert one.progress().got == plane.counters.state_bytes == 300
    assert plane.traces is not None
    found = [record._replace(began=0.0, ended=0.0) for record in plane.traces.take() if isinstance(record, FetchRecord)]
    assert found == [FetchRecord("b", 0, 0.0, 0.0, 300, "b: broke off"), FetchRecord("b", 0, 0.0, 0.0, 300, "")]


def test_a_shard_that_did_not_come_is_fetched_again_and_is_there_once_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LOOK", 0.0)
    shard, donor, transport = Shard(0, 0, 1, 7, ("b",)), Member("b", "10.0.0.1", 1), Mock()
    offer, tainted = SnapshotOffer(1, 1, b"", ((0, 1),)), Tainted("an operation may still write")
    for answers, have in (([Later("busy"), FetchError("b: broke off"), None], {0}), ([tainted], set())):
        transport.shard.side_effect = answers
        one = Round(Plane("a" * 16), Mock(), Mock(), transport, None, (donor,), "b", 7, (shard,), offer, LIMITS)
        one.flat = Mock()
        fetching = in_thread(functools.partial(one._guarded, one._fetch_all))
        fetching.join(TIMEOUT / 8)
        assert not fetching.is_alive()
        assert one._have == have and one.error is (None if have else tainted)


MISSING, LOST, HERE = Shard(0, 0, 1, 7, ("b", "c")), Shard(0, 0, 1, 7, ("c",)), Shard(1, 1, 2, 7, ("c",))


@pytest.mark.parametrize(
    ("missing", "kept", "moves"),
    [
        (MISSING, 3, True),
        (MISSING, 2, False),  # the average of call 9 was missed
        (MISSING, 0, False),
        (LOST, 3, False),
    ],
)
def test_in_a_new_view_it_goes_on_with_the_donors_that_are_left(missing: Shard, kept: int, moves: bool) -> None:
    offer, donors = SnapshotOffer(2, 2, b"", ((0, 2),)), [Member(name, "10.0.0.1", 1) for name in "bc"]
    new = Member("d", "10.0.0.1", 2)
    former, session = Mock(), Mock()
    session.plan.holders, session.view.members = ("b", "d"), [donors[0], new]
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), former, donors, "b", 7, (missing, HERE), offer, LIMITS)
    one.flat, one._have = Mock(), {1}
    one._failures[0, "b"] = rounds._TRIES
    for number in range(7, 7 + kept):
        one.keep(number, None, 0)
    assert one.move(session, 10) == moves
    assert (one.session is session) == moves
    if moves:
        assert one._next_shard() == Shard(0, 0, 1, 7, ("b",)), "whose failures were of the former view"
        assert one._donor_of(Shard(2, 0, 1, 9, ("c", "d"))) is new, "of a later chunk"


@pytest.mark.parametrize(("nbytes", "held", "fits"), [(9, 0, True), (9, 1, False), (4, 4, True), (5, 4, False)])
def test_a_spare_may_hold_one_average_however_large_it_is(nbytes: int, held: int, fits: bool) -> None:
    own = Mock(**{"layout.nbytes": nbytes})
    limits = RecoveryLimits(TIMEOUT, 8, live=True)
    one = Round(Plane("a" * 16), Mock(), own, Mock(), None, (), "b", 7, (), SnapshotOffer(1, 0, b"", ()), limits)
    one._pending.held = held
    assert one.wait_room(0.0) == fits


def test_who_stays_as_far_behind_for_long_does_not_keep_pace() -> None:
    """Then it would never catch up."""
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(1, 0, b"", ((0, 1),)), LIMITS)
    found = []
    for number in range(10, 10 + rounds.PATIENCE + 1):
        one._pending.position = number - 3
        found.append(one._falls_behind(number))
    assert found == [False] * rounds.PATIENCE + [True]
    one._pending.position += 1
    assert not one._falls_behind(10 + rounds.PATIENCE)


def test_who_waits_for_a_replay_is_told_that_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    plane, own, offer = Plane("a" * 16), Mock(), SnapshotOffer(1, 0, b"", ((0, 1),))
    own.layout.nbytes = 0
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    one = Round(plane, Mock(), own, Mock(), None, (), "b", 7, (), offer, LIMITS)
    one.flat = Mock()
    monkeypatch.setattr(one._changed, "wait", lambda _seconds: one._fail(NoFollowing("the optimizer raised")))
    with pytest.raises(NoFollowing, match="the optimizer raised"):
        one.apply_backpressure(Mock(), 8, level=True)


def test_a_shard_of_another_version_or_of_a_round_that_is_over_is_not_wanted() -> None:
    shards = tuple(Shard(index, index, index + 1, 7, ("b",)) for index in (0, 1))
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, shards, SnapshotOffer(2, 2, b"", ()), LIMITS)
    assert all(map(one._wants, shards))
    assert not one._wants(Shard(0, 0, 1, 8, ("b",))) and not one._wants(Shard(2, 2, 3, 7, ("b",)))
    one._fail(NoFollowing("it is given up"))
    assert not any(map(one._wants, shards))


def test_an_average_is_applied_after_the_counters_of_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """And to the chunks that do not include it; before the next one is waited for, nothing is under way on a device."""
    first, second = (Shard(index, index, index + 1, 7 + index, ("b",)) for index in (0, 1))
    whole, own, plane = SnapshotOffer(2, 1, b"packed", ((0, 1), (1, 2))), Mock(), Plane("a" * 16)
    done, results = Mock(), Mock(slots=(), **{"layout.nbytes": 4})
    own.owners, own.sources, own.supply = (), (), done.supply
    own.reattach, own.deliver, own.layout.places, plane.state_places = done.reattach, done.deliver, ("gpu 1",), ("gpu 0",)
    monkeypatch.setattr(rounds, "replay", done.replay)
    monkeypatch.setattr(rounds, "settle", done.settle)
    one = Round(plane, "registered", own, Mock(), None, (), "b", 7, (first,), whole, LIMITS)  # type: ignore[arg-type]
    monkeypatch.setattr(one._chunks, "take_over", done.take_over)
    one._chunks._parameters = [["one"], ["two"]]  # type: ignore[list-item]
    one.flat, one._have = Mock(), {0}
    one.add(whole, (second,), 8)
    for number in (7, 8):
        one.keep(number, results, number - 1)
    replaying = in_thread(functools.partial(one._guarded, one._replay_all))
    eventually(lambda: one._pending.position == 8, "the first chunk is level with the second")
    eventually(lambda: one._changed._waiters, "it waits")  # type: ignore[attr-defined]
    with one._changed:
        one._have.add(1)
        one._changed.notify_all()
    eventually(lambda: one.level_with(9), "all is replayed")
    one.end()
    replaying.join(TIMEOUT)
    places = {"gpu 0", "gpu 1"}
    assert [each for each in done.mock_calls if each != call.take_over("registered", [])] == [
        call.take_over("registered", [(1, b"packed")]),
        *(call.reattach(), call.deliver(results), call.replay("registered", ["two"], step=6), call.settle(places)),
        *(call.reattach(), call.deliver(results), call.replay("registered", [], step=7), call.settle(places)),
        *(call.supply([]), call.reattach(), call.settle({"gpu 1"})),
    ]


def test_who_has_nothing_to_fetch_begins_with_the_next_chunk_at_once() -> None:
    first, second = (Shard(index, index, index + 1, 7 + index, ("b",)) for index in (0, 1))
    offer, donor, transport = SnapshotOffer(2, 1, b"", ((0, 1), (1, 2))), Member("b", "10.0.0.1", 1), Mock()
    one = Round(Plane("a" * 16), Mock(), Mock(), transport, None, (donor,), "b", 7, (first,), offer, LIMITS)
    one.flat, one._have = Mock(), {0}
    fetching = in_thread(one._fetch_all)
    eventually(lambda: one._changed._waiters, "it waits")  # type: ignore[attr-defined]
    one.add(offer, (second,), 8)
    fetching.join(TIMEOUT / 8)
    assert [call.args[1] for call in transport.shard.call_args_list] == [second]


@pytest.mark.parametrize(("nbytes", "stands_back"), [(LARGE - 1, False), (LARGE, True)])
def test_a_large_state_comes_when_nothing_else_is_to_be_done(
    nbytes: int, stands_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, offer = Mock(), SnapshotOffer(nbytes, 0, b"", ((0, nbytes),))
    monkeypatch.setattr(rounds, "stand_back", noted.stand_back)
    monkeypatch.setattr(rounds, "thread_device", lambda: noted.share_device)
    Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, (), offer, LIMITS)._guarded(noted.work)
    assert noted.mock_calls == [*([call.stand_back()] if stands_back else []), call.share_device(), call.work()]


@pytest.mark.parametrize(
    ("level", "averages", "position"),
    [
        (True, 1, 8),  # the others apply theirs meanwhile
        (False, 1, 7),
        (False, 2, 8),  # one may be held
        (True, 2, 8),
    ],
)
def test_the_others_wait_for_no_more_than_has_to_be_replayed(
    level: bool, averages: int, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, plane, nbytes = Mock(), Plane("a" * 16), LIMITS.pending
    own.layout.nbytes = nbytes
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    offer = SnapshotOffer(1, 0, b"", ((0, 1),))
    one = Round(plane, Mock(), own, Mock(), None, (), "b", 7, (), offer, LIMITS)
    one.flat = Mock()
    if averages > 1:
        one.keep(7, Mock(slots=(), **{"layout.nbytes": nbytes}), 0)
    one.keep(6 + averages, None, 0)
    monkeypatch.setattr(one._changed, "wait", lambda _seconds: one._pending.done())
    one.apply_backpressure(Mock(), 7 + averages, level=level)
    assert one._pending.position == position


def test_that_they_wait_is_logged_once_not_in_each_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own, plane, nbytes = Mock(), Plane("a" * 16), LIMITS.pending
    own.layout.nbytes = nbytes
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    one = Round(plane, Mock(), own, Mock(), None, (), "b", 7, (), SnapshotOffer(1, 0, b"", ((0, 1),)), LIMITS)
    one.flat = Mock()
    monkeypatch.setattr(one._changed, "wait", lambda _seconds: one._pending.done())
    one.keep(7, None, 0)
    for number in range(8, 12):
        one.keep(number, Mock(slots=(), **{"layout.nbytes": nbytes}), 0)
        one.apply_backpressure(Mock(), number + 1, level=False)
    [record] = caplog.records
    assert "cannot hold more averages (recovery_pending_mb); 2 wait to be replayed" in record.getMessage()
    monkeypatch.setattr(one, "_falls_behind", lambda _number: True)
    for number in (13, 15):
        one.keep(number - 1, None, 0)
        one.keep(number, None, 0)
        one.apply_backpressure(Mock(), number + 1, level=False)
    [_, record] = caplog.records
    assert "cannot replay averages as quickly as they come; 2 wait" in record.getMessage()


def test_the_others_wait_a_moment_for_the_last_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """That saves a call in which they would wait as well."""
    offer, own, waits = SnapshotOffer(1, 0, b"", ((0, 1),)), Mock(), list[float]()
    own.layout.nbytes = 0
    one = Round(Plane("a" * 16), Mock(), own, Mock(), None, (), "b", 7, (), offer, LIMITS)

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        one.flat = Mock()
        return True

    monkeypatch.setattr(one._changed, "wait", wait)
    one.apply_backpressure(Mock(), 8, level=False, grace=5.0)
    assert waits == [5.0]


def test_it_is_level_once_the_list_of_tensors_and_all_shards_are_here() -> None:
    """The whole state may be inline: then no shards are missing, even before that is known."""
    shard, offer = Shard(0, 0, 1, 7, ("b",)), SnapshotOffer(1, 1, b"", ((0, 1),))
    for shards, flat, expected in (((), None, False), ((), Mock(), True), ((shard,), Mock(), False), ((shard,), None, False)):
        one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), None, (), "b", 7, shards, offer, LIMITS)
        one.flat = flat
        assert one.level_with(7) == expected


def test_if_a_thread_cannot_be_started_none_is_left_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    go, usual = threading.Event(), threading.Thread.start

    def prepare(*_: object) -> Mock:
        assert go.wait(TIMEOUT)
        return Mock(nbytes=1)

    def start(thread: threading.Thread) -> None:
        if thread.name == "ftlib-fetch-1":
            go.set()
            raise RuntimeError("can't start new thread")
        usual(thread)

    monkeypatch.setattr(rounds, "prepare", prepare)
    monkeypatch.setattr(threading.Thread, "start", start)
    plane = Plane("a" * 16)
    one = Round(plane, Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(1, 0, b"", ((0, 1),)), LIMITS)
    with pytest.raises(RuntimeError, match="can't start"):
        one.begin()
    assert not any(thread.is_alive() for thread in one._threads) and len(one._threads) == 2
    assert plane.recovery is None
    one.end()


def test_what_failed_in_the_former_view_is_no_reason_to_begin_anew() -> None:
    """The next round would come to the same, and only the last one may say that the state must not be used."""
    session = Mock(**{"plan.holders": (), "view.members": ()})
    one = Round(Plane("a" * 16), Mock(), Mock(), Mock(), Mock(), (), "b", 7, (MISSING,), SnapshotOffer(1, 1, b"", ()), LIMITS)
    one._fail(ConfigError("the state does not fit"))
    with pytest.raises(ConfigError, match="the state does not fit"):
        one.move(session, 8)


def test_threads_that_go_on_writing_the_state_end_it_with_an_error_in_time() -> None:
    """All of them together have so long."""
    clock, joins = Clock(), list[float]()

    def join(seconds: float) -> None:
        joins.append(seconds)
        clock.at += 90.0

    one = Round(
        Plane("a" * 16, threads=clock), Mock(), Mock(), Mock(), None, (), "b", 7, (), SnapshotOffer(1, 0, b"", ()), LIMITS
    )
    quick, slow = Mock(join=join, **{"is_alive.return_value": False}), Mock(join=join, **{"is_alive.return_value": True})
    slow.name, one._threads = "slow", [quick, slow]
    with pytest.raises(RebuildTimeout, match="thread slow still writes the state after 60 s"):
        one.end()
    assert joins == [60.0, 0.0]
    assert one._over


@pytest.mark.parametrize(("nbytes", "held", "waits"), [(4, 1, False), (4, 2, True), (9, 0, False)])
def test_the_others_wait_for_who_can_hold_no_more(
    nbytes: int, held: int, waits: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One average may always be held."""
    own, plane = Mock(**{"layout.nbytes": nbytes}), Plane("a" * 16)
    monkeypatch.setattr(plane, "acting_in", lambda _session: True)
    offer, limits = SnapshotOffer(1, 0, b"", ((0, 1),)), RecoveryLimits(TIMEOUT, 8, live=True)
    one = Round(plane, Mock(), own, Mock(), None, (), "b", 7, (), offer, limits)
    for number in range(7, 7 + held):
        one.keep(number, Mock(slots=(), **{"layout.nbytes": nbytes}), 0)
    one.keep(7 + held, None, 0)
    one.flat, shown = Mock(), list[bool]()
    assert not one.progress().braking

    def wait(_seconds: float) -> None:
        shown.append(one.progress().braking)
        one._pending.done()

    monkeypatch.setattr(one._changed, "wait", wait)
    one.apply_backpressure(Mock(), 8 + held, level=False)
    assert shown == ([True] if waits else []) and not one.progress().braking
    assert (one._pending.position > 7) == waits == bool(caplog.records)
