"""Deadlines for futures, blocks and streams of an accelerator: none of them waits forever."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.futures import Future

from ..common.threads import LONGEST
from ..frameworks.background import start_task

__all__ = ["context_timeout", "future_timeout", "future_wait", "stream_timeout"]

T = TypeVar("T")
_AGAIN = 0.1
"""Seconds until a thread is asked for again, where the process has as many as it may."""


class _Deadlines:
    """Calls functions at their time, each on a thread of its own: one that hangs holds up no other."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # its thread is not there, and may have held the lock

    def _forget(self) -> None:
        self._changed = threading.Condition()
        # Guarded by it:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None

    def at(self, timeout: timedelta, function: Callable[[], None]) -> Callable[[], None]:
        """Call ``function`` after ``timeout``, unless what this returns is called before."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="ftlib-deadlines", daemon=True)
                thread.start()  # it waits for this lock; where no thread is to be had, the next call tries again
                self._thread = thread
            number = next(self._numbers)
            heapq.heappush(self._due, (time.monotonic() + timeout.total_seconds(), number, function))
            self._changed.notify()

        def call_off() -> None:
            with self._changed:
                self._due = [entry for entry in self._due if entry[1] != number]
                heapq.heapify(self._due)

        return call_off

    def _run(self) -> None:
        """Until there is nothing to wait for any more."""
        with self._changed:
            while self._due:
                when, _, function = self._due[0]
                left = when - time.monotonic()
                if left > 0:
                    self._changed.wait(min(left, LONGEST))
                    continue
                try:
                    start_task("deadline", function)
                except RuntimeError:  # no thread is to be had now
                    self._changed.wait(_AGAIN)
                else:
                    heapq.heappop(self._due)
            self._thread = None


_deadlines = _Deadlines()


def future_timeout(fut: Future[T], timeout: timedelta) -> Future[T]:
    """A future that completes as ``fut`` does, or with a TimeoutError after ``timeout``."""
    timed: Any = Future()
    first = threading.Lock()  # taken by whoever completes it

    def expire() -> None:
        if first.acquire(blocking=False):
            timed.set_exception(TimeoutError(f"the future did not complete within {timeout}"))

    call_off = _deadlines.at(timeout, expire)

    def complete(done: Future[T]) -> None:
        if not first.acquire(blocking=False):
            return
        call_off()
        try:
            value = done.value()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is handed on
            timed.set_exception(error)
        else:
            timed.set_result(value)

    fut.add_done_callback(complete)
    return timed  # type: ignore[no-any-return]


def future_wait(fut: Future[T], timeout: timedelta) -> T:
    """The result of ``fut``. TimeoutError if there is none after ``timeout``."""
    ended = threading.Event()
    fut.add_done_callback(lambda _: ended.set())
    if not ended.wait(min(timeout.total_seconds(), LONGEST)):
        raise TimeoutError(f"the future did not complete within {timeout}")
    value: Any = fut.wait()
    return value  # type: ignore[no-any-return]


@contextmanager
def context_timeout(callback: Callable[[], None], timeout: timedelta) -> Iterator[None]:
    """Call ``callback``, on another thread, if the block takes longer than ``timeout``."""
    call_off = _deadlines.at(timeout, callback)
    try:
        yield
    finally:
        call_off()


def stream_timeout(callback: Callable[[], None], timeout: timedelta) -> None:
    """Call ``callback``, on another thread, if the accelerator's current stream has not come to this point after ``timeout``.

    Without an accelerator nothing is to be done.
    """
    if not torch.accelerator.is_available():
        return
    event = torch.accelerator.current_stream().record_event()

    def look() -> None:
        if not event.query():
            callback()

    _deadlines.at(timeout, look)
