"""Tasks: each on a thread of its own, which is used again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ftlib.frameworks import background as tasks
from ftlib.frameworks.background import finish_tasks, start_task

TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def nobody_waits() -> Iterator[None]:
    assert finish_tasks(TIMEOUT)
    yield
    assert finish_tasks(TIMEOUT)


def done(name: str = "test") -> threading.Thread:
    """Which thread does a task that takes no time; it waits for the next one then."""
    found: list[threading.Thread] = []
    ended = threading.Event()

    def work() -> None:
        found.append(threading.current_thread())
        assert found[0].name == f"ftlib-{name}" and found[0].daemon
        ended.set()

    start_task(name, work)
    assert ended.wait(TIMEOUT)
    with tasks._changed:
        assert tasks._changed.wait_for(lambda: not tasks._busy, TIMEOUT)
    return found[0]


def test_a_thread_that_is_through_takes_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LINGER", TIMEOUT)
    assert done("one") is done("two")


def test_whoever_is_busy_takes_none() -> None:
    both = threading.Barrier(2)
    for _ in range(2):
        start_task("meet", lambda: both.wait(TIMEOUT) and None)
    assert finish_tasks(TIMEOUT)
    assert not both.broken


def test_one_without_work_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LINGER", 0.01)
    thread = done()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    assert done() is not thread


def test_the_end_waits_for_what_is_under_way_and_for_no_idle_thread() -> None:
    idle = done()
    may_end = threading.Event()
    start_task("slow", lambda: may_end.wait(TIMEOUT) and None)
    assert not finish_tasks(0.01)
    began = time.monotonic()
    assert finish_tasks(TIMEOUT, again=False), "one that was waited for in vain is not waited for at the end of every group"
    assert time.monotonic() - began < TIMEOUT / 2
    assert not finish_tasks(0.01), "but at the end of the process"
    may_end.set()
    assert finish_tasks(TIMEOUT)
    idle.join(TIMEOUT)
    assert not idle.is_alive()


def test_one_that_fails_takes_nobody_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: told.set())

    def broken() -> None:
        raise ValueError("no such group")

    start_task("broken", broken)
    assert told.wait(TIMEOUT)
    assert finish_tasks(TIMEOUT)
    done()


def test_a_forked_child_starts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_LINGER", TIMEOUT)
    done()
    assert tasks._idle
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            done()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_is_forked_while_another_thread_holds_the_lock() -> None:
    """Else its first task waits for ever."""
    held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with tasks._changed:
            held.set()
            may_end.wait(TIMEOUT)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(TIMEOUT)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(TIMEOUT / 2))  # pytest uses faulthandler in the parent: its lock may be held for ever here
        ended = threading.Event()
        start_task("test", ended.set)
        os._exit(0 if ended.wait(TIMEOUT) and finish_tasks(TIMEOUT) else 3)
    may_end.set()
    holder.join(TIMEOUT)
    assert os.waitpid(child, 0)[1] == 0
