"""The call lock while an average is open in backward: whose calls wait, and whose are refused."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ftlib.common.threads import Threads
from ftlib.core.engine.call_lock import CallLock
from ftlib.errors import ConfigError, RebuildTimeout
from tests.harness.basics import TIMEOUT

T = TypeVar("T")
CALL = object()


def nothing() -> None:
    pass


def elsewhere(action: Callable[[], T]) -> T:
    """What ``action`` returns or raises in another thread."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(action())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(TIMEOUT)
    if errors:
        raise errors[0]
    return found[0]


def test_calls_of_the_same_thread_are_refused_by_name() -> None:
    lock = CallLock(1.0)
    assert lock.try_open("average of 4 tensors", CALL)
    assert lock.inside()
    assert lock.carrying
    with pytest.raises(ConfigError, match="barrier was called while average of 4 tensors is under way in backward"):
        lock.take("barrier", nothing, nothing)
    assert not lock.try_open("another average", CALL)
    lock.end_open()
    assert not lock.inside()
    assert lock.take("barrier", lambda: 5, nothing) == 5


def test_calls_of_other_threads_wait() -> None:
    lock = CallLock(0.05)
    assert lock.try_open("average", CALL)
    with pytest.raises(RebuildTimeout, match=r"was in a call for 0\.05 s"):
        elsewhere(lambda: lock.take("barrier", nothing, nothing))
    assert not elsewhere(lambda: lock.try_open("another", CALL))
    assert elsewhere(lambda: lock.lend(lambda: 5)) is None, "no backup worker stands in from its first bucket on"
    lock.end_open()
    assert elsewhere(lambda: lock.take("barrier", lambda: 5, nothing)) == 5


def test_it_is_not_opened_before_those_that_wait() -> None:
    lock = CallLock(10.0)
    entered, leave = threading.Event(), threading.Event()

    def call() -> None:
        entered.set()
        leave.wait(TIMEOUT)

    first = threading.Thread(target=lambda: lock.take("barrier", call, nothing))
    first.start()
    assert entered.wait(TIMEOUT)
    assert not lock.try_open("average", CALL)
    leave.set()
    first.join(TIMEOUT)
    assert lock.try_open("average", CALL)
    lock.end_open()


def test_within_a_call_it_is_not_opened() -> None:
    lock = CallLock(1.0)
    assert not lock.take("barrier", lambda: lock.try_open("average", CALL), nothing)
    assert lock.take("barrier", lambda: 5, nothing) == 5


class Interrupted(Threads):
    """A signal handler runs whenever a thread takes its turn, and when it gives it back."""

    def __init__(self, handler: Callable[[], None]) -> None:
        self.handler = handler

    def turn(self) -> Any:
        turn, interrupt = threading.Lock(), self.handler

        class Turn:
            def acquire(self, timeout: float) -> bool:
                interrupt()
                taken = turn.acquire(timeout=timeout)
                interrupt()
                return taken

            def release(self) -> None:
                interrupt()
                turn.release()
                interrupt()

        return Turn()


def test_a_signal_handler_never_waits_for_its_own_thread() -> None:
    refused: list[str] = []

    def handler() -> None:
        with pytest.raises(ConfigError, match="barrier was called within another call, from a signal handler") as error:
            lock.take("barrier", nothing, nothing)
        refused.append(str(error.value))

    lock = CallLock(60.0, Interrupted(handler))
    began = time.monotonic()
    assert lock.take("average", lambda: 5, nothing) == 5
    assert len(refused) == 4
    assert time.monotonic() - began < 30.0


@pytest.mark.parametrize("raises", [True, False])
def test_its_end_gives_the_turn_back(raises: bool) -> None:
    lock = CallLock(1.0)
    told: list[str] = []
    assert lock.try_open("average", CALL)

    def carry_out() -> int:
        with pytest.raises(ConfigError, match="within another call"):
            lock.take("barrier", nothing, nothing)
        if raises:
            raise KeyError
        return 5

    def tell() -> None:
        told.append("told")
        with pytest.raises(ConfigError, match="callback"):
            lock.take("barrier", nothing, nothing)

    if raises:
        with pytest.raises(KeyError):
            lock.finish_open(carry_out, tell)
    else:
        assert lock.finish_open(carry_out, tell) == 5
    assert told == ([] if raises else ["told"])
    assert elsewhere(lambda: lock.take("barrier", lambda: 6, nothing)) == 6


def test_who_waits_for_the_program_sees_that_it_has_come() -> None:
    lock = CallLock(1.0)
    returned = lock.returned()
    assert not returned()
    assert lock.try_open("average", CALL)
    assert returned()
    lock.end_open()
