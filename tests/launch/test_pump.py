"""The thread that handles lines: whatever a handler, a stream or a record is like, it takes the next one."""

from __future__ import annotations

import logging
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ftlib.launch.director.output.pump import OutputEntry, Pump, Source
from tests.harness.basics import TIMEOUT
from tests.launch.launching import Kept

SOURCE = Source("h", 0, 0, 0)
STRANGE = (logging.INFO, "mine", math.inf, "of no time")


def handled(pump: Pump, *entries: tuple[str, Any]) -> None:
    """Put lines or records of ``SOURCE``, and wait until the thread has handled them and ended."""
    counted = threading.Semaphore(0)
    for stream, what in entries:
        more = {"records": [what]} if stream == "logging" else {"lines": [what]}
        pump.put(OutputEntry(SOURCE, stream, then=counted.release, **more))
    for _ in entries:
        assert counted.acquire(timeout=TIMEOUT), "the thread has ended before"
    over = threading.Event()
    pump.close(over.set)
    assert over.wait(TIMEOUT)


class Odd:
    """No handler, though it is used as one; or no stream."""


def test_a_handler_that_is_none_gets_no_more_lines_and_others_get_all(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept()
    odd: Any = Odd()
    handled(Pump(lambda: [odd, kept], None, live=False), ("stdout", b"one"), ("stdout", b"two"))
    assert kept.texts() == ["one", "two"]
    assert sum("gets no more lines" in record.message for record in caplog.records) == 1


def test_a_record_of_no_time_is_written(tmp_path: Path) -> None:
    handled(Pump(None, tmp_path, live=False), ("logging", STRANGE), ("stdout", b"next"))
    assert (tmp_path / "h-0.log").read_text() == "--:--:--.--- INFO mine: of no time\nnext\n"


def test_a_full_disk_is_mentioned_once_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "h-0.log").symlink_to("/dev/full")
    handled(Pump(None, tmp_path, live=False), ("stdout", b"one"), ("stdout", b"two"))
    assert [record.message for record in caplog.records] == [
        "log_dir: h-0.log: output is lost from here on: No space left on device"
    ]


def test_a_stream_that_is_none_is_mentioned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "stdout", Odd())
    handled(Pump(None, tmp_path, live=True), ("stdout", b"one"), ("stdout", b"two"))
    assert (tmp_path / "h-0.log").read_text() == "one\ntwo\n"
    assert [record.message for record in caplog.records] == ["the live view failed; further failures of it are not mentioned"]
