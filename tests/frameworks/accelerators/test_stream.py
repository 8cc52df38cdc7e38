"""A device's stream: order, launches that come late, events."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ftlib.frameworks.accelerators.rehearsal.stream import Stream
from tests.harness.basics import eventually

TIMEOUT = 120.0


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream()
    yield stream
    stream.hasten()
    eventually(lambda: stream.idle, "the end")


def test_kernels_run_in_order_and_later_than_the_call(stream: Stream) -> None:
    may_run, ran = threading.Event(), list[int]()
    stream.enqueue(lambda: may_run.wait(TIMEOUT) and None, 0.0)
    for number in range(5):
        stream.enqueue(lambda number=number: ran.append(number), 0.02 if number == 1 else 0.0)
    assert not ran and not stream.idle
    may_run.set()
    eventually(lambda: stream.idle, "the end")
    assert ran == [0, 1, 2, 3, 4]


def test_an_event_marks_what_was_launched_before_it(stream: Stream) -> None:
    may_run = threading.Event()
    stream.enqueue(lambda: may_run.wait(TIMEOUT) and None, 0.0)
    event = stream.record()
    assert not event.query()
    may_run.set()
    eventually(event.query, "the event")


def test_an_event_recorded_before_the_launch_is_done_at_once(stream: Stream) -> None:
    ran = threading.Event()
    stream.enqueue(ran.set, 0.3)
    assert stream.launching and not stream.idle
    early = stream.record()
    assert early.query() and not ran.is_set()
    eventually(lambda: not stream.launching, "the launch")
    eventually(stream.record().query, "the event")
    assert ran.is_set()


def test_a_stop_hastens_the_launch(stream: Stream) -> None:
    ran = threading.Event()
    stream.enqueue(ran.set, 1000.0)
    stream.hasten()
    event = stream.record()
    eventually(event.query, "the event")
    assert ran.is_set() and stream.idle
