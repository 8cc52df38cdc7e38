"""Averages on their way to who listens, and those that wait to be replayed: whose buffers are whose, and how many there are."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from ftlib.core.calls.call import Call, Kind, Results
from ftlib.core.plane.plane import Plane
from ftlib.core.tensors.layout import Layout, lay_out
from ftlib.core.tensors.staging import Slot
from ftlib.recovery.donor import replication_stream
from ftlib.recovery.donor.replication_sender import ReplicationSender
from ftlib.recovery.donor.replication_stream import MOST, ReplicationRecord, ReplicationStream
from ftlib.recovery.joiner.replay_state import PendingAverages


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
    assert pending.held == given.nbytes
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
    assert stream.append(record(MOST + 1, given)) is not None and quick.next(0.0) is not None


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
