"""Lines, prefixes, and the thread that writes."""

from __future__ import annotations

import os
import select
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftlib.launch.processes.output import MAX_LINE, Folder, LineSplitter, Writer, prefix, prefix_of_several, render
from tests.harness.basics import TIMEOUT


def test_lines_are_whole_however_they_arrive() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a") == []
    assert splitter.feed(b"b\nc\n\nd") == [b"ab", b"c", b""]
    assert splitter.finish() == [b"d"]
    assert splitter.finish() == []


def test_a_line_without_end_is_cut() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"x" * (2 * MAX_LINE + 5))
    assert [len(line) for line in lines] == [MAX_LINE, MAX_LINE]
    assert splitter.finish() == [b"xxxxx"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", b"plain"),
        (b"windows\r", b"windows"),
        (b" 10%\r 50%\r100%", b"100%"),
        (b"caf\xe9", "caf\N{REPLACEMENT CHARACTER}".encode()),
        (b"", b""),
    ],
)
def test_a_line_is_shown_as_a_terminal_would_show_it(line: bytes, shown: bytes) -> None:
    assert render(b"> ", line) == b"> " + shown + b"\n"


def test_prefixes() -> None:
    assert prefix(2, coloured=False) == b"[worker 2] "
    assert b"[worker 2]" in prefix(2, coloured=True)
    assert prefix(2, coloured=True) != prefix(3, coloured=True)


def test_a_reader_that_stopped_blocks_the_thread_only() -> None:
    room = threading.Event()
    reading, writing = os.pipe()
    writer = Writer(room.set, high=1000)
    try:
        data = b"y" * (1 << 20)  # more than the pipe holds
        writer.put(writing, data)
        assert writer.full
        assert not writer.close(0.05)
        taken = 0
        while taken < len(data):
            taken += len(os.read(reading, 1 << 16))
        assert room.wait(TIMEOUT)
        assert writer.close(10)
    finally:
        os.close(reading)
        os.close(writing)


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = Writer(lambda: None)
    try:
        data = b"y" * (1 << 20)  # more than the pipe holds
        writer.put(writing, data)
        writer.put(writing, b"later\n")
        assert not writer.close(0.05)
        taken = b""
        while len(taken) < len(data) + 6 and select.select([reading], [], [], TIMEOUT)[0]:
            taken += os.read(reading, 1 << 16)
        assert taken == data + b"later\n"
        assert writer.close(10)
    finally:
        os.close(reading)
        os.close(writing)
    assert capfd.readouterr().err == ""


def test_a_reader_that_leaves_a_full_descriptor_that_does_not_block_ends_the_waiting(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    writer = Writer(lambda: None)
    try:
        writer.put(writing, b"y" * (1 << 20))
        assert not writer.close(0.05)
        os.close(reading)
        assert writer.close(10)
    finally:
        os.close(writing)
    assert capfd.readouterr().err.count("output is lost") == 1


def test_a_reader_that_left_stops_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    gone, broken = os.pipe()
    reading, writing = os.pipe()
    os.close(gone)
    writer = Writer(lambda: None)
    try:
        writer.put(broken, b"lost\n")
        writer.put(broken, b"lost\n")
        writer.put(writing, b"kept\n")
        assert writer.close(10)
        assert os.read(reading, 100) == b"kept\n"
    finally:
        for fd in (broken, reading, writing):
            os.close(fd)
    assert capfd.readouterr().err.count("output is lost") == 1


class TestFolder:
    def test_equal_lines_of_several_workers_are_one(self) -> None:
        folder = Folder()
        for worker in (2, 0, 3):
            for line in (b"a", b"b", b"a"):
                folder.add(worker, 1, line)
        folder.add(1, 2, b"a")  # on stderr: another line
        taken = folder.take()
        assert [(each.fd, each.line, sorted(each.workers)) for each in taken] == [
            (1, b"a", [0, 2, 3]),
            (1, b"b", [0, 2, 3]),
            (1, b"a", [0, 2, 3]),
            (2, b"a", [1]),
        ]
        assert len(folder) == 0
        assert folder.take() == []
        assert prefix_of_several(taken[0].workers, coloured=False) == b"[workers 0, 2-3] "
        assert prefix_of_several(taken[-1].workers, coloured=False) == b"[worker 1] "

    @given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"])), max_size=40))
    def test_each_worker_has_its_lines_in_order(self, written: list[tuple[int, bytes]]) -> None:
        folder = Folder()
        for worker, line in written:
            folder.add(worker, 1, line)
        taken = folder.take()
        for worker in range(4):
            own = [line for each, line in written if each == worker]
            assert [each.line for each in taken if worker in each.workers] == own
        assert all(len(set(each.workers)) == len(each.workers) for each in taken)
