"""Averages on their way to who listens, and those that wait to be replayed: whose buffers are whose, and how many there are."""

from __future__ import annotations

import torch

from ftlib.bucket import Layout, lay_out
from ftlib.call import Results
from ftlib.recovery.feed import Feed, Lesson
from ftlib.recovery.pending import Pending
from ftlib.staging import Slot


def layout(width: int) -> Layout:
    return lay_out("average", [(torch.float32, (width,))], "SUM", 1 << 20)


def lesson(number: int, given: Layout) -> Lesson:
    return Lesson(number, given.signature, given.kind, 1.0, tuple(Slot(bucket, 0) for bucket in given.buckets))


def test_buffers_that_were_read_are_used_again_for_what_fits_them() -> None:
    feed, one, other = Feed(), layout(3), layout(4)
    listener = feed.listen(one.signature)
    first = lesson(1, one)
    assert feed.hand(first) == []
    assert listener.next(0.0) is first
    assert feed.hand(lesson(2, one)) == [], "the first one is being read"
    assert listener.next(0.0) is not None
    assert feed.hand(lesson(3, one)) == list(first.slots)
    feed.listen(other.signature)
    assert listener.next(0.0) is not None
    assert feed.hand(lesson(4, other)) == [], "of another size"


def test_what_waits_to_be_replayed_is_counted() -> None:
    pending, given = Pending(7), layout(3)
    averages = [Results(number, given, lesson(number, given).slots, 1.0) for number in (7, 8)]
    for results in averages:
        assert pending.keep(results.number, results) == []
    assert pending.keep(9, None) is None
    assert pending.held == 2 * given.nbytes
    pending.done()
    assert pending.held == given.nbytes
    assert pending.next is averages[1]
    assert pending.keep(10, averages[0]) == list(averages[0].slots)
