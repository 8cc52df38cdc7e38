"""A program that hangs, under a launcher: its process ends, unless it comes back in time."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from ftlib.core.engine.call_lock import CallLock
from ftlib.core.plane.hang import HUNG, end_hung
from ftlib.core.plane.plane import Plane
from tests.harness.basics import TIMEOUT, eventually
from tests.harness.company import in_thread


def plane() -> Plane:
    return Plane("w0", lambda *_, **__: None)


def test_a_program_that_stays_away_ends_its_process(caplog: pytest.LogCaptureFixture) -> None:
    codes: list[int] = []
    end_hung(plane(), lambda: False, 0.0, codes.append)
    assert codes == [HUNG]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "its launcher starts it anew" in caplog.text


def test_a_program_that_is_back_goes_on() -> None:
    codes: list[int] = []
    call_lock = CallLock(1.0)
    returned = call_lock.returned()
    assert not returned()
    call_lock.take("barrier()", lambda: None, lambda: None)
    assert returned()
    end_hung(plane(), returned, 0.0, codes.append)
    assert not codes


def test_a_program_that_is_back_a_moment_later_goes_on() -> None:
    codes: list[int] = []
    answers = iter([False, True])
    end_hung(plane(), lambda: next(answers), TIMEOUT, codes.append)
    assert not codes


def test_one_that_comes_out_of_a_call_is_back() -> None:
    """It hung within the function of ``execute``."""
    call_lock, hangs = CallLock(1.0), threading.Event()
    inside = threading.Event()

    def function() -> None:
        inside.set()
        hangs.wait()

    thread = in_thread(lambda: call_lock.take("execute()", function, lambda: None))
    assert inside.wait(TIMEOUT)
    returned = call_lock.returned()
    assert not returned()
    hangs.set()
    eventually(returned, "it is back")
    thread.join()


def test_one_that_has_left_is_not_awaited() -> None:
    call_lock = CallLock(1.0)
    returned = call_lock.returned()
    call_lock.departed = True
    assert returned()


def test_it_is_looked_for_now_and_then_until_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all the time: the program may be working, and needs the processor."""
    codes: list[int] = []
    times = [0.0]
    clock = SimpleNamespace(monotonic=lambda: times[-1], sleep=lambda seconds: times.append(times[-1] + seconds))
    monkeypatch.setattr("ftlib.core.plane.hang.time", clock)
    looks = iter(range(4))
    end_hung(plane(), lambda: next(looks) < 0, 0.4, codes.append)
    assert codes == [HUNG]
    assert times == [0.0, 0.2, 0.4]
