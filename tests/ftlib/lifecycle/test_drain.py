"""The handler of SIGTERM by itself: which signals count, what a look at ``should_leave`` changes, who keeps the signal."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Iterator

import pytest

import ftlib.lifecycle.drain
from ftlib.common.processes import TWIN
from ftlib.core.engine.call_lock import CallLock
from ftlib.lifecycle.drain import Drain
from tests.harness.basics import TIMEOUT


class Ended(BaseException):
    """What the process would have ended with."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, as its only element. Nothing ends this process, nor is anything left for its end."""
    time = [100.0]

    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(ftlib.lifecycle.drain.time, "monotonic", lambda: time[0])
    monkeypatch.setattr(ftlib.lifecycle.drain.os, "_exit", end)
    monkeypatch.setattr(ftlib.lifecycle.drain.atexit, "register", lambda function: function is gc.freeze)
    before = signal.getsignal(signal.SIGTERM)
    yield time
    signal.signal(signal.SIGTERM, before)


def made(*, over: bool = False) -> tuple[Drain, CallLock, threading.Event]:
    call_lock, woken = CallLock(1.0), threading.Event()
    return Drain(call_lock, lambda: over, woken.set), call_lock, woken


def test_a_second_signal_ends_it_unless_it_is_the_first_ones_twin(clock: list[float]) -> None:
    drain, call_lock, woken = made()
    drain._handle(signal.SIGTERM, None)
    assert call_lock.leaving and call_lock.says_goodbye
    assert woken.wait(TIMEOUT)
    clock[0] += TWIN / 2
    drain._handle(signal.SIGTERM, None)
    clock[0] += TWIN
    with pytest.raises(Ended, match="143"):
        drain._handle(signal.SIGTERM, None)


def test_a_notice_by_other_means_is_no_first_signal(clock: list[float]) -> None:
    drain, call_lock, _ = made()
    drain.notice("preemption")
    clock[0] += 60.0
    drain._handle(signal.SIGTERM, None)
    assert call_lock.leaving


def test_who_looks_is_not_taken_away(clock: list[float]) -> None:
    drain, call_lock, woken = made()
    assert not drain.looked()
    drain.notice("a test")
    assert drain.looked()
    assert call_lock.leaving and not call_lock.says_goodbye
    assert woken.wait(TIMEOUT)


def test_the_first_look_may_come_after_the_notice(clock: list[float]) -> None:
    drain, call_lock, _ = made()
    drain.notice("a test")
    assert call_lock.says_goodbye
    assert drain.looked()
    assert not call_lock.says_goodbye


def test_who_is_no_member_ends_as_by_default(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(ftlib.lifecycle.drain.os, "kill", lambda pid, number: sent.append((pid, number)))
    drain, call_lock, _ = made(over=True)
    drain.parting = True
    drain._handle(signal.SIGTERM, None)
    assert call_lock.leaving and not sent, "it is just leaving"
    drain.parting = False
    drain._handle(signal.SIGTERM, None)
    assert sent == [(os.getpid(), signal.SIGTERM)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_programs_own_handler_stays(clock: list[float]) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError

    for handler in (own, signal.SIG_IGN):
        signal.signal(signal.SIGTERM, handler)
        drain, *_ = made()
        drain.install(shield=False)
        assert signal.getsignal(signal.SIGTERM) is handler
        drain.remove()
        assert signal.getsignal(signal.SIGTERM) is handler
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    drain, *_ = made()
    drain.install(shield=False)
    assert signal.getsignal(signal.SIGTERM) == drain._handle
    signal.signal(signal.SIGTERM, own)  # installed later
    drain.remove()
    assert signal.getsignal(signal.SIGTERM) is own


def test_another_thread_takes_no_signal(clock: list[float]) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    drain, *_ = made()
    thread = threading.Thread(target=lambda: drain.install(shield=False))
    thread.start()
    thread.join(TIMEOUT)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
