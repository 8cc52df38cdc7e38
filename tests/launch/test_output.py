"""Lines, prefixes, and the thread that writes."""

from __future__ import annotations

import os
import threading

import pytest

from ftlib.launch.processes.output import MAX_LINE, LineSplitter, Writer, prefix, render


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
        assert room.wait(10)
        assert writer.close(10)
    finally:
        os.close(reading)
        os.close(writing)


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
