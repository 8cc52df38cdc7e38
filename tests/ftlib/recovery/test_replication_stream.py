"""Averages on their way to who listens, and those that wait to be replayed: whose buffers are whose, and how many there are."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import msgpack
import pytest
import torch
from torch import nn

from consensus import Member, RefusalError
from ftlib import ConfigError
from ftlib.common.threads import Threads
from ftlib.core.backup.backup_call import BackupCall
from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout, lay_out
from ftlib.core.tensors.staging import Slot
from ftlib.recovery.donor import replication_sender, replication_stream
from ftlib.recovery.donor.replication_sender import ReplicationSender, SnapshotRequest
from ftlib.recovery.donor.replication_stream import MOST, ReplicationRecord, ReplicationStream
from ftlib.recovery.donor.snapshots import Snapshots
from ftlib.recovery.joiner.replay_state import PendingAverages
from ftlib.state.registry import Registered
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread

from .holders import meeting


def layout(width: int) -> Layout:
    return lay_out("average", [(torch.float32, (width,))], "SUM", 1 << 20)


def record(number: int, given: Layout) -> ReplicationRecord:
    return ReplicationRecord(
        number,
        number,
        given.signature,
        given.kind,
        1.0,
        "",
        tuple(Slot(bucket, 0) for bucket in given.buckets),
    )


def test_buffers_that_were_read_are_used_again_for_what_fits_them() -> None:
    stream, one, other = ReplicationStream(), layout(3), layout(4)
    subscriber = stream.subscribe(one.signature)
    first = record(1, one)
    assert stream.append(first) == []
    assert subscriber.next(0.0) is first
    assert stream.append(record(2, one)) == [], "the first one is being read"
    assert subscriber.next(0.0) is not None
    assert stream.append(record(3, one)) == list(first.slots)
    stream.subscribe(other.signature)
    assert subscriber.next(0.0) is not None
    assert stream.append(record(4, other)) == [], "of another size"


def test_what_waits_to_be_replayed_is_counted() -> None:
    pending, given = PendingAverages(7), layout(3)
    averages = [Results(number, given, record(number, given).slots, 1.0) for number in (7, 8)]
    for results in averages:
        assert pending.keep(results.number, results, 0) == []
    assert pending.keep(9, None, 0) is None
    assert pending.held == 2 * given.nbytes
    pending.done()
    assert (pending.held, pending.replayed) == (given.nbytes, 1)
    assert pending.next is averages[1]
    assert pending.keep(10, averages[0], 0) == list(averages[0].slots)


def test_a_slow_subscriber_is_cut_off_and_the_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_stream, "ROOM", 0)
    stream, given = ReplicationStream(), layout(3)
    slow, quick = stream.subscribe(given.signature), stream.subscribe(given.signature)
    for number in range(MOST + 1):
        stream.append(record(number, given))
        assert quick.next(0.0) is not None
    with pytest.raises(LookupError, match="takes averages too slowly"):
        slow.next(0.0)
    assert not slow.queue, "its buffers are free"
    assert stream.append(record(MOST + 1, given)) is not None
    last = quick.next(0.0)
    assert last is not None
    stream.append(record(MOST + 2, given))
    assert quick.next(0.0) is not None
    assert stream.append(record(MOST + 3, given)) == list(last.slots), "the other one alone had them to read"


def test_if_the_only_subscriber_is_cut_off_the_buffers_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_stream, "ROOM", 0)
    stream, given = ReplicationStream(), layout(3)
    stream.subscribe(given.signature)
    assert [stream.append(record(number, given)) for number in range(MOST + 1)] == [[]] * MOST + [None]


class Waking(Threads):
    """Whoever waits is woken after so many seconds, for nothing."""

    def __init__(self, *seconds: float) -> None:
        self.time = 100.0
        self.waits: list[float] = []
        self._seconds = iter(seconds)

    def now(self) -> float:
        return self.time

    def condition(self) -> Any:
        condition = super().condition()
        condition.wait = self._wait  # type: ignore[method-assign]
        return condition

    def _wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.time += next(self._seconds)
        return True


def test_who_has_nothing_to_tell_says_so_in_time_however_often_it_is_woken() -> None:
    """A spare gives up a sender that is silent for long."""
    threads = Waking(0.25, 0.5, 0.25)
    assert ReplicationStream(threads).subscribe(b"").next(1.0) is None
    assert threads.waits == [1.0, 0.75, 0.25]


def test_a_lone_members_record_holds_its_input_as_it_is_whatever_its_weight() -> None:
    """It has reduced nothing, so there are no sums to give away; the record's divisor is 1."""
    sender, given = ReplicationSender(Plane("a"), lambda: None, Mock()), layout(3)
    subscriber = sender._stream.subscribe(given.signature)
    call = Call(Kind.AVERAGE, given, [torch.tensor([1.0, 2.0, 3.0])], weight=5.0, divide=True)
    assert sender.hand_on(call, Results(8, given, (), 5.0)) is None
    told = subscriber.next(0.0)
    assert told is not None
    [slot] = told.slots
    assert (slot.buffer[:3] / told.weight).tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("kind", "results", "applied"),
    [
        (Kind.AVERAGE, {}, True),
        (Kind.AVERAGE, {"declined": True}, False),
        (Kind.AVERAGE, {"intact": False}, False),
        (Kind.ALLREDUCE, {}, False),
    ],
)
def test_only_averages_that_count_are_handed_on_to_be_applied(kind: Kind, results: dict[str, Any], applied: bool) -> None:
    """The buffers of all others stay where they are."""
    sender, given = ReplicationSender(Plane("a"), lambda: None, Mock()), layout(3)
    subscriber = sender._stream.subscribe(given.signature)
    found = Results(8, given, [Slot(bucket, 0) for bucket in given.buckets], 2.0, **results)
    assert sender.hand_on(Call(kind, given, [torch.ones(3)]), found) == ([] if applied else None)
    told = subscriber.next(0.0)
    assert told is not None
    assert told.slots == (tuple(found.slots) if applied else ())


def test_a_spare_is_answered_as_soon_as_its_call_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after that it counts as one that is served, hence a new view leaves what it gets alone."""
    monkeypatch.setattr(replication_sender, "POLL", TIMEOUT)
    plane, answers = Plane("a"), list[bytes]()
    plane.state_id = "origin"
    sender = ReplicationSender(plane, lambda: Registered({"model": nn.Linear(2, 2)}), Mock())
    asking = in_thread(lambda: answers.append(sender.begin(request(1))))
    eventually(lambda: plane.changed._waiters, "it waits")  # type: ignore[attr-defined]
    served = [sender.busy]
    sender.entering(1)
    asking.join(TIMEOUT / 4)
    assert answers
    served.append(sender.busy)
    sender.released("b")
    assert [*served, sender.busy] == [True, True, False]


def test_nothing_is_kept_for_nobody() -> None:
    stream, given = ReplicationStream(), layout(3)
    one, other = stream.subscribe(given.signature), stream.subscribe(given.signature)
    first = record(1, given)
    stream.append(first)
    assert one.next(0.0) is other.next(0.0) is first
    one.close()
    one.close()
    assert not stream._spare, "the other one still reads it"
    other.next(0.0)
    assert stream._spare == list(first.slots)
    stream.subscribe(given.signature).close()
    assert stream._spare
    other.close()
    assert not stream._spare


@pytest.mark.parametrize("current", [None, Mock(fence="of that call")])
def test_the_state_is_read_after_what_the_program_has_under_way(current: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On devices."""
    plane, fences = Plane("a"), list[object]()
    plane.current = current

    def split(_registered: object, _step: int, fence: object) -> tuple[Mock, Mock]:
        fences.append(fence)
        return Mock(), Mock()

    monkeypatch.setattr(replication_sender, "split", split)
    ReplicationSender(plane, Mock(), Mock())._grant([], 1)
    assert fences == [current and current.fence]


def request(version: int, joiner: str = "b", state_id: str = "origin", turn: int = 0) -> SnapshotRequest:
    return SnapshotRequest(joiner, state_id, ("a",), turn, version, wants_inline=False)


def holding(*others: str) -> Plane:
    """Of a member "a" that holds the state, in a view with ``others``; its next call is number 2."""
    plane = Plane("a")
    assert plane.activate(meeting([Member(each, "127.0.0.1", 1) for each in ("a", *others)], "a", None, version=2))
    plane.state_id = plane.current_state_id
    return plane


def test_each_spare_gets_its_own_answer() -> None:
    """Whatever the others have asked for; one that cannot be served is told why, and the training goes on."""
    plane, model = holding("member"), nn.Linear(2, 2)
    here, snapshots = plane.state_id, Snapshots()
    registered = Registered({"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)})
    sender = ReplicationSender(plane, lambda: registered, snapshots)
    asked = [
        request(1, "late", here),
        request(2, "elsewhere", "another"),
        request(2, "member", here),
        request(2, "b", here),
        request(2, "odd", here, turn=-1),
        request(2, "c", here),
        request(3, "early", here),
    ]
    sender._requests += asked
    sender.entering(2)
    past = "this member does not hold that state, or is past call"
    texts = [str(each.answer.exception(0.0)) for each in asked[:-1]]
    assert texts[:4] == [f"{past} 1", f"{past} 2", "member is no spare any more, but a member", "None"]
    assert all("turn=-1" in text for text in texts[4:])
    assert sender._requests == asked[-1:] and not asked[-1].answer.done()
    assert msgpack.unpackb(asked[3].answer.result())["nbytes"] == 24
    assert snapshots.data("b", 0, 2, TIMEOUT) is not None


@pytest.mark.parametrize("late", [False, True])
def test_spares_do_not_listen_to_one_that_is_behind(late: bool) -> None:
    """As a late program is, while its backup worker takes part in the others' calls."""
    plane, given = holding(), layout(3)
    sender = ReplicationSender(plane, lambda: None, Mock())
    subscriber = sender._stream.subscribe(given.signature)
    call: Call = BackupCall(0.0, veto=False, awaited=bool, present=bool)
    if not late:
        call, plane.state_id = Call(Kind.AVERAGE, given, [torch.ones(3)]), ""
    assert sender.hand_on(call, Results(2, given, [Slot(bucket, 0) for bucket in given.buckets], 1.0)) is None
    with pytest.raises(LookupError, match="lacks the state itself"):
        subscriber.next(0.0)
    assert not sender.busy


def test_one_without_the_state_has_no_averages_to_tell() -> None:
    plane = holding()
    with pytest.raises(LookupError, match="no state is registered here"):
        ReplicationSender(plane, lambda: None, Mock()).averages(b"")
    sender = ReplicationSender(plane, lambda: Registered({"model": nn.Linear(2, 2)}), Mock())
    assert sender.averages(b"") is not None and sender.busy
    sender, plane.state_id = ReplicationSender(plane, lambda: Registered({"model": nn.Linear(2, 2)}), Mock()), ""
    with pytest.raises(RefusalError, match="does not hold that state"):
        sender.averages(b"")
    assert not sender.busy


def test_who_listens_hears_at_once() -> None:
    """Of a record, and of the end."""
    stream, given, told = ReplicationStream(), layout(3), list[object]()
    subscriber = stream.subscribe(given.signature)

    def listen() -> None:
        told.append(subscriber.next(TIMEOUT))
        with pytest.raises(LookupError, match="it is over"):
            subscriber.next(TIMEOUT)
        told.append("over")

    listening, one = in_thread(listen), record(1, given)
    eventually(lambda: stream._changed._waiters, "it waits")  # type: ignore[attr-defined]
    stream.append(one)
    eventually(lambda: told, "it has heard", TIMEOUT / 4)
    eventually(lambda: stream._changed._waiters, "it waits")  # type: ignore[attr-defined]
    stream.end("it is over")
    listening.join(TIMEOUT / 4)
    assert told == [one, "over"]


def test_buffers_are_not_used_again_when_another_has_read_what_it_does_not_want() -> None:
    """One whose program averages something else gets the records without the sums."""
    stream, one, other = ReplicationStream(), layout(3), layout(4)
    slow, quick = stream.subscribe(one.signature), stream.subscribe(other.signature)
    first = record(1, one)
    stream.append(first)
    assert quick.next(0.0) is first
    assert stream.append(record(2, one)) == [], "nobody has read the sums"
    assert slow.next(0.0) is first
    assert quick.next(0.0) is not None
    assert stream.append(record(3, one)) == [], "they are being read"


def test_a_state_that_cannot_be_sent_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_sender, "split", Mock(side_effect=ConfigError("a lambda is in it")))
    sender, asked = ReplicationSender(Plane("a"), Mock(), Mock()), request(1)
    sender._grant([asked], 1)
    with pytest.raises(LookupError, match="a lambda is in it"):
        asked.answer.result(0.0)


def test_a_request_that_is_to_be_repeated_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be granted later, and what is pinned then is for nobody."""
    monkeypatch.setattr(replication_sender, "POLL", 0.0)
    plane = Plane("a")
    plane.state_id = "origin"
    sender = ReplicationSender(plane, Mock(), Mock())
    with pytest.raises(RefusalError, match="call 1 was not entered here meanwhile"):
        sender.begin(request(1))
    assert not sender.busy
