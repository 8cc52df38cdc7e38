"""What an operation has come to: set once, by any thread. A ``concurrent.futures.Future`` as far as operations need one.

Each message has two of these, so they are kept light: no lock and no condition of their own, and who waits brings a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..links.parts import guarded

_SETTLING = threading.RLock()
"""Of all outcomes: held for some assignments only. A finalizer that runs in between may settle another one."""


class Outcome:
    """A value or an error, once it is there. Thread-safe."""

    __slots__ = ("_callbacks", "_done", "_error", "_value")

    def __init__(self) -> None:
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], object]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """It has ended. The first one counts: a time-out may have come before."""
        with _SETTLING:
            if self._done:
                return
            self._value, self._error = value, error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            guarded(callback)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """The error it has ended with, None if it has not, or well."""
        return self._error

    @property
    def value(self) -> Any:
        """What it has ended with; raises its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float) -> bool:
        """Block until it has ended, at most ``timeout`` seconds; whether it has."""
        if not self._done and timeout > 0:
            ended = threading.Lock()
            ended.acquire()
            self.on_end(ended.release)
            ended.acquire(timeout=timeout)
        return self._done

    def on_end(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once it has ended, on the thread that ends it, or now: it must not wait."""
        with _SETTLING:
            now = self._done
            if not now:
                self._callbacks.append(callback)
        if now:
            guarded(callback)


def all_of(outcomes: list[Outcome], whole: Outcome) -> Outcome:
    """``whole``, which ends when all have ended, with the first error of any; unless it ends before."""
    lock, left = threading.Lock(), [len(outcomes)]

    def one() -> None:
        with lock:
            left[0] -= 1
            last = left[0] == 0
        if last:
            whole.settle(error=next((each.error for each in outcomes if each.error is not None), None))

    for each in outcomes:
        each.on_end(one)
    return whole
