"""A spare's own thread: whom it asks, what it goes on with, and when it ends."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import Mock

import pytest

from consensus import LeftError, Member, View
from ftlib.core.calls.learner import NoFollowing
from ftlib.core.plane.plane import Plane
from ftlib.errors import RebuildTimeout
from ftlib.recovery import warm_standby
from ftlib.recovery.joiner.http_transport import Begun, FetchError, Refused
from ftlib.recovery.joiner.limits import RecoveryLimits
from ftlib.recovery.joiner.round import Broken
from ftlib.recovery.layout.replication_log import KEEPALIVE, Hello
from ftlib.recovery.layout.shards import single_donor_shards
from ftlib.recovery.warm_standby import WarmStandby
from tests.harness.basics import TIMEOUT, eventually

MEMBERS = (Member("b" * 16, "10.0.0.1", 1), Member("c" * 16, "10.0.0.1", 2))
OWN = Member("a" * 12 + "0000", "10.0.0.1", 3)
VIEW = View(2, "parent", MEMBERS)
FULL = len(MEMBERS)


@pytest.fixture
def plane() -> Plane:
    return Plane(OWN.id)


def standby(plane: Plane, transport: Mock, view: View | None = VIEW) -> WarmStandby:
    """Of a spare that knows ``view``."""
    own = Mock()
    own.layout.signature = b"signature"
    limits = RecoveryLimits(TIMEOUT, 1, live=True)
    return WarmStandby(plane, Mock(), own, transport, lambda: view, FULL, limits)


def level(one: WarmStandby) -> Mock:
    """It has a round that has replayed call 7 as view "v" computed it, of the state "o". Returns that round."""
    round_ = Mock(state_id="o", error=None)
    one._round, one._kept, one._kept_in = round_, 7, "v"
    return round_


@pytest.mark.parametrize(
    ("stop", "written"), [(lambda one: one.surrender(8), None), (WarmStandby.end, True)], ids=["promoted", "over"]
)
def test_it_ends_while_it_rests(
    plane: Plane, stop: Callable[[WarmStandby], object], written: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gives it anything any more, and what it had is dropped. Its thread is not there while the program ends."""
    monkeypatch.setattr(warm_standby, "_REST", TIMEOUT)
    monkeypatch.setattr(warm_standby, "_LONGEST_REST", TIMEOUT)
    before = set(threading.enumerate())
    one = standby(plane, Mock(**{"asked.side_effect": FetchError("refused")}))
    round_ = level(one)
    one.begin()
    [thread] = [each for each in set(threading.enumerate()) - before if each.name == "ftlib-standby"]
    eventually(lambda: one._changed._waiters, "it rests")  # type: ignore[attr-defined]
    assert round_.end.called
    assert stop(one) == written
    thread.join(TIMEOUT / 8)
    assert not thread.is_alive()
    assert thread.daemon, "an error of the program's ends the process"


@pytest.mark.parametrize(
    "error", [ValueError("nobody expected this"), RuntimeError("nor this"), Broken("nor what a round says")]
)
def test_what_nobody_expected_leaves_it_without_the_state(
    plane: Plane, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still a spare, and loads the state once it is promoted. Else it would fetch all of it again and again."""
    monkeypatch.setattr(warm_standby, "thread_device", lambda: share_device)
    share_device = Mock()
    one = standby(plane, Mock(**{"asked.side_effect": error}))
    round_ = level(one)
    one._run()
    share_device.assert_called_once_with()
    round_.end.assert_called_once_with()
    assert one.error is None and one.surrender(8) is None


@pytest.mark.parametrize("short", [MemoryError("no room"), RuntimeError("can't start new thread"), OSError("too many files")])
def test_what_is_short_for_a_moment_does_not_leave_it_without_the_state(
    plane: Plane, short: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for weeks."""
    caplog.set_level(logging.INFO, "ftlib")
    monkeypatch.setattr(warm_standby, "_REST", 0.0)
    one = standby(plane, Mock())
    round_, attempts = level(one), iter([short, None])

    def attend() -> None:
        if (error := next(attempts)) is not None:
            raise error
        one._over = True

    monkeypatch.setattr(one, "_attend", attend)
    one._run()
    round_.end.assert_called_once_with()
    assert one._over and one.error is None
    [record] = caplog.records
    assert record.getMessage() == f"this spare has to get the state anew: {type(short).__name__}: {short}"


@pytest.mark.parametrize("why", [ValueError("nobody expected this"), FetchError("refused")], ids=lambda why: type(why).__name__)
def test_threads_that_go_on_writing_the_state_are_the_programs_error(plane: Plane, why: Exception) -> None:
    """Whatever was wrong before: nothing may train on a state that is being written."""
    one = standby(plane, Mock(**{"asked.side_effect": why}))
    stuck = RebuildTimeout("its threads do not end")
    level(one).end.side_effect = stuck
    one._run()
    assert one.error is stuck


def test_whoever_failed_before_it_was_level_is_asked_again(plane: Plane) -> None:
    """Over weeks each member may fail once. To begin anew then would be to get the whole state again."""
    asked: list[str] = []
    good = b"".join(Hello(7, "v", "o", MEMBERS).encode()) + KEEPALIVE
    answers = iter([b"", good, good])

    @contextmanager
    def answer(sender: Member, _query: Mapping[str, object], *_: object) -> Iterator[Mock]:
        asked.append(sender.id[0])
        try:
            yield Mock(readinto=io.BytesIO(next(answers)).readinto)
        except EOFError as error:
            if len(asked) == 3:
                plane.stop(LeftError("it is over"))
            raise FetchError("it broke off") from error

    one = standby(plane, Mock(asked=answer))
    level(one)
    one._attend()
    assert asked == ["b", "c", "b"]


@pytest.mark.parametrize(
    ("hello", "goes_on"),
    [
        ((7, "v", "o"), True),
        ((6, "u", "o"), True),  # it will send call 7
        ((7, "w", "o"), False),  # which was done again
        ((8, "v", "o"), False),  # call 8 is missing
        ((7, "v", "p"), False),
    ],
    ids=str,
)
def test_a_sender_of_other_calls_begins_anew(
    plane: Plane, hello: tuple[int, str, str], goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once nothing of the former round writes the state any more."""
    one = standby(plane, Mock())
    round_, ended = level(one), list[bool]()
    monkeypatch.setattr(one, "_begin", lambda *_: ended.append(round_.end.called))
    one._take_up(MEMBERS[0], Mock(hello=Hello(*hello, MEMBERS)))
    assert ended == ([] if goes_on else [True])
    assert round_.end.called != goes_on
    assert (one._round is round_) == goes_on


@pytest.mark.parametrize(
    ("view", "begun", "asked"),
    [
        (None, False, ""),
        (VIEW, False, "bc"),
        (View(2, "parent", MEMBERS[:1]), False, ""),  # it has room: this worker is no spare, or not for long
        (View(2, "parent", MEMBERS[:1]), True, "b"),  # it goes on until it is promoted
        (View(2, "parent", (*MEMBERS, OWN)), False, ""),
        (View(2, "parent", (*MEMBERS, OWN)), True, "bc"),
    ],
)
def test_whom_it_asks(plane: Plane, view: View | None, begun: bool, asked: str) -> None:
    one = standby(plane, Mock(), view)
    if begun:
        level(one)
    assert "".join(member.id[0] for member in one._senders()) == asked


def test_it_rests_longer_each_time_that_it_has_failed(
    plane: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Until it has kept pace for once."""
    caplog.set_level(logging.INFO, "ftlib")
    one, rests, attempts = standby(plane, Mock()), list[float](), iter("fffffffflo")

    def attend() -> None:
        match next(attempts):
            case "f":
                raise FetchError("refused")
            case "l":
                one._told = True

    def rest(_over: object, seconds: float) -> None:
        rests.append(seconds)
        one._over = len(rests) == 10

    monkeypatch.setattr(one, "_attend", attend)
    monkeypatch.setattr(one._changed, "wait_for", rest)
    one._run()
    assert rests == [0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0, 0.2, 0.4]
    assert [record.getMessage() for record in caplog.records] == ["this spare has to get the state anew: refused"] * 8


def test_a_promoted_one_waits_for_the_last_record_while_it_may_come(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    one, waits = standby(plane, Mock()), list[float]()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        one._kept += 1

    monkeypatch.setattr(one._changed, "wait", wait)
    one.await_call(9, lambda: True)
    assert not waits, "it has no round"
    level(one)
    one.await_call(9, lambda: False)
    assert not waits, "the view has ended"
    one.await_call(9, lambda: True)
    assert one._kept == 9


@pytest.mark.parametrize(
    ("number", "begins", "fits"), [(8, 8, True), (8, 7, True), (8, 9, False), (9, 8, False), (7, 7, False)]
)
def test_a_promoted_one_gives_up_a_round_that_lacks_an_average(plane: Plane, number: int, begins: int, fits: bool) -> None:
    one = standby(plane, Mock())
    round_ = level(one)
    round_.begins = begins
    assert one.surrender(number) is (round_ if fits else None)
    assert round_.end.called != fits


def test_what_members_keep_for_it_is_released_at_the_end(plane: Plane) -> None:
    transport = Mock()
    one = standby(plane, transport)
    one.asked = {member.id: member for member in MEMBERS}
    one.end()
    transport.release_all.assert_called_once_with([*MEMBERS])


def test_a_job_that_averages_something_else_is_not_followed(plane: Plane) -> None:
    one = standby(plane, Mock())
    round_ = level(one)
    own = one._own.layout
    own.kind, own.same_call.return_value = "average", False
    other = Mock(signature=b"other", kind="average", number=8)
    with pytest.raises(NoFollowing, match="the others average something else"):
        one._listen(MEMBERS[0], Mock(**{"next.return_value": other}))
    round_.check_fit.assert_called_once_with()
    assert not round_.keep.called


def test_once_it_is_over_the_programs_call_is_left_alone(plane: Plane) -> None:
    """The training thread goes on with it, and a record may have come while it waited for the list of tensors."""
    one, own = standby(plane, Mock()), Mock(**{"layout.kind": "average"})
    one._own, other = own, Mock(signature=b"another order", kind="average", number=8)
    level(one)
    with pytest.raises(NoFollowing, match="the order in which the others average has become known"):
        one._compare(other)
    own.relay.assert_called_once_with()
    level(one).check_fit = one.end
    one._compare(other)
    own.relay.assert_called_once_with()
    assert not one._keep(other)


def test_a_round_that_has_failed_holds_nobody_up(plane: Plane) -> None:
    one = standby(plane, Mock())
    round_, looks = level(one), list[float]()
    round_.begins, round_.keep.return_value = 9, None

    def wait_room(seconds: float) -> bool:
        looks.append(seconds)
        round_.error = NoFollowing("the optimizer raised") if len(looks) == 2 else None
        assert len(looks) < 5
        return False

    round_.wait_room = wait_room
    assert one._keep(Mock(number=8, view_id="v", slots=()))
    assert len(looks) == 2
    with pytest.raises(NoFollowing, match="the optimizer raised"):
        one._look()


def test_records_are_passed_on_in_order(plane: Plane) -> None:
    one = standby(plane, Mock())
    round_, slot, replayed = level(one), Mock(bucket="bucket"), Mock(bucket="bucket")
    round_.begins, round_.keep.return_value = 9, [replayed]
    assert one._keep(Mock(number=7, view_id="v", slots=(slot,))), "another sender begins with what is known"
    assert one._spare == {id("bucket"): [slot]}
    assert one._keep(Mock(number=8, view_id="v", slots=())), "the state that comes contains it"
    assert not round_.keep.called and one._kept == 8
    assert one._keep(Mock(number=9, view_id="w", slots=(slot,), step=4, weight=2.0)) and (one._kept, one._kept_in) == (9, "w")
    [(number, results, step)] = [each.args for each in round_.keep.call_args_list]
    assert (number, results.number, results.slots, step) == (9, 9, (slot,), 4)
    assert one._spare == {id("bucket"): [slot, replayed]}, "the next average comes in those of one that is replayed"
    with pytest.raises(FetchError, match="averages 10 to 10 are missing"):
        one._keep(Mock(number=11, view_id="w", slots=()))
    one.surrender(10)
    assert not one._keep(Mock(number=10, view_id="w", slots=()))


def test_it_begins_with_what_all_donors_have_pinned(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_standby, "Round", made := Mock())
    begun = {"b": Begun(100, "f", b"", "w"), "c": Begun(100, "f", b"manifest", "w")}
    transport = Mock(**{"begin.side_effect": lambda holder, *_, **__: begun[holder.id[0]]})
    one, stream = standby(plane, transport), Mock(hello=Hello(7, "v", "o", MEMBERS))
    one._begin(MEMBERS[1], stream)
    version = 7 + 3
    assert one._round is made.return_value and made.return_value.begin.called
    assert made.call_args.args[7:9] == (version, single_donor_shards(100, [member.id for member in MEMBERS], 0, version))
    offer = made.call_args.args[9]
    assert (offer.packed, offer.chunks) == (b"manifest", ((0, 100),)), "the manifest is that of the sender"
    assert one.asked == {member.id: member for member in MEMBERS}
    assert (one._kept, one._kept_in) == (7, "v")
    redone = Mock(number=version - 1, view_id="x")
    with pytest.raises(NoFollowing, match=f"call {version - 1} was redone by the others"):
        one._keep(redone)
    begun["b"] = Begun(100, "f", b"", "x")
    with pytest.raises(FetchError, match="the donors disagree on what the state is"):
        one._begin(MEMBERS[1], stream)


def test_it_asks_further_ahead_each_time_that_it_comes_too_late(plane: Plane) -> None:
    """Hardly further than it has to: until that call it cannot begin to get the state."""
    transport = Mock(**{"begin.side_effect": Refused("past the beginning")})
    one, stream, ahead = standby(plane, transport), Mock(hello=Hello(7, "v", "o", MEMBERS)), list[int]()
    one._told = True
    for _ in range(9):
        with pytest.raises(Refused):
            one._begin(MEMBERS[0], stream)
        ahead.append(one._ahead)
    assert not one._told, "it is level no more"
    assert ahead == [6, 12, 24, 48, 96, 192, 256, 256, 256]
    assert transport.begin.call_args_list[2].args[4] == 7 + 6


def test_a_sender_that_is_in_the_view_no_more_is_given_up(plane: Plane) -> None:
    """It may still answer, and its averages are those of a call that the others do without it."""
    one, views = standby(plane, Mock()), iter([None, VIEW, View(3, "parent", MEMBERS[1:])])
    level(one)
    one._known = lambda: next(views)
    with pytest.raises(FetchError, match="is in the job's view no more"):
        one._listen(MEMBERS[0], Mock(**{"next.return_value": None}))
    assert next(views, "all were looked at") == "all were looked at"


def test_a_call_of_another_kind_is_no_other_average(plane: Plane) -> None:
    one = standby(plane, Mock())
    round_ = level(one)
    one._own.layout.kind = "average"  # type: ignore[misc]
    one._compare(Mock(signature=b"other", kind="vote", number=8))
    one._compare(Mock(signature=b"signature", kind="average", number=8))
    assert not round_.check_fit.called


def test_who_gets_averages_from_nobody_says_why(plane: Plane) -> None:
    """Where there is nobody to ask there is nothing to say."""
    transport = Mock(**{"asked.side_effect": lambda sender, *_: (_ for _ in ()).throw(FetchError(f"{sender.id[0]}: refused"))})
    with pytest.raises(FetchError, match=r"^b: refused; c: refused$"):
        standby(plane, transport)._attend()
    standby(plane, transport, view=None)._attend()


def test_that_it_keeps_pace_is_logged_once_and_releases_the_donors(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ftlib")
    transport = Mock()
    one = standby(plane, transport)
    round_ = level(one)
    one.asked = {member.id: member for member in MEMBERS}
    one._take_up(MEMBERS[1], Mock(hello=Hello(7, "v", "o", MEMBERS)))
    for ready in (False, True, True):
        round_.level_with.return_value = ready
        one._look()
    round_.level_with.assert_called_with(8, but=1)
    [record] = caplog.records
    assert record.getMessage() == f"this spare has the state as of call 8, and keeps pace with {MEMBERS[1]}"
    transport.release_all.assert_called_once_with([*MEMBERS])
