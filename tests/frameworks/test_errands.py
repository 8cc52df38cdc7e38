"""Errands: each on a thread of its own, which is used again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from ftlib.frameworks import background as errands
from ftlib.frameworks.background import errand, finish_errands

TIMEOUT = 20.0


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    assert finish_errands(TIMEOUT)
    yield
    assert finish_errands(TIMEOUT)


def done(name: str = "test") -> threading.Thread:
    """Which thread does an errand that takes no time; it waits for the next one then."""
    found: list[threading.Thread] = []
    ended = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        assert found[0].name == f"ftlib-{name}" and found[0].daemon
        ended.set()

    errand(name, work)
    assert ended.wait(TIMEOUT)
    with errands._changed:
        assert errands._changed.wait_for(lambda: not errands._busy, TIMEOUT)
    return found[0]


def test_a_thread_that_is_through_takes_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_LINGER", TIMEOUT)
    assert done("one") is done("two")


def test_whoever_is_busy_takes_none() -> None:
    both = threading.Barrier(2)
    for _ in range(2):
        errand("meet", lambda: both.wait(TIMEOUT) and None)
    assert finish_errands(TIMEOUT)
    assert not both.broken


def test_one_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_LINGER", 0.01)
    thread = done()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert done() is not thread


def test_the_end_waits_for_what_is_under_way_and_for_no_idle_thread() -> None:
    idle = done()
    may_end = threading.Event()
    errand("slow", lambda: may_end.wait(TIMEOUT) and None)
    assert not finish_errands(0.01)
    may_end.set()
    assert finish_errands(TIMEOUT)
    idle.join(TIMEOUT)
    assert not idle.is_alive()


def test_one_that_fails_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())

    def broken() -> None:
        raise ValueError("no such group")

    errand("broken", broken)
    assert told.wait(TIMEOUT)
    assert finish_errands(TIMEOUT)
    done()


def test_a_forked_child_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errands, "_LINGER", TIMEOUT)
    done()
    assert errands._idle
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            done()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
