"""The lock of calls: calls of several threads are carried out one by one, and none once the program has left.

This outlives the lifetimes of a worker (see ``rejoin``): what the program wants does not change when it is excluded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ...common.threads import SYSTEM, Thread, Threads
from ...errors import ConfigError, RebuildTimeout

__all__ = ["CallLock"]

T = TypeVar("T")

_IN_CALL = "{} was called within another call, from a signal handler or a state function; return from it first"
_IN_CALLBACK = "{}: a callback of on_view_change cannot average, as the call that tells it has not returned; act after it"
_LOOK = 0.05
"""Seconds between two looks whether the program leaves. No event: a signal handler may leave while its thread waits for it."""


class CallLock:
    """One process's: whose turn it is. Its threads take turns."""

    def __init__(self, timeout: float, threads: Threads = SYSTEM) -> None:
        """``timeout``: seconds for which a thread waits for its turn."""
        self.timeout = timeout
        self._process = os.getpid()
        self._threads = threads
        self._serial = threads.lock()
        self._waiting: deque[None] = deque()
        """One for each thread that waits for its turn. No number: threads count at once."""
        self._taken = 0
        """How often the program took one."""
        self._busy = ""
        """What the thread in ``_holder`` may not call within; empty outside of calls."""
        self._holder: Thread | None = None
        self.leaving = False
        """Whether there was a notice that this worker has to go (see ``drain``): set by any thread, or a signal handler."""
        self.own_point = False
        """Whether the program looks at that, and ends its loop by itself."""
        self.departed = False
        """Whether the program left or closed: it enters no call any more."""

    def inside(self) -> bool:
        """Whether this thread is within a call: in a callback, a state function or a signal handler."""
        return bool(self._busy) and self._holder is self._threads.current()

    def is_leaving(self) -> bool:
        """Whether there was a notice that this worker has to go."""
        return self.leaving

    def leave(self) -> None:
        """There is such a notice. Any thread, signal handlers too."""
        self.leaving = True

    def ends_itself(self) -> None:
        """The program looks at notices, and ends its loop by itself."""
        self.own_point = True

    def depart(self) -> None:
        """The program has left, or closed: it enters no call any more."""
        self.departed = True

    @property
    def carrying(self) -> bool:
        """Whether a call is carried out."""
        return self._busy is _IN_CALL

    @property
    def says_goodbye(self) -> bool:
        """Whether the next attempt says that this member leaves after its call."""
        return self.leaving and not self.own_point

    def take(self, call: str, carry_out: Callable[[], T], tell: Callable[[], None]) -> T:
        """Carry out ``call`` (its name) when it is this thread's turn; after it ``tell`` runs the program's callbacks.

        Raises RebuildTimeout where another thread keeps its turn for ``timeout``, ConfigError within a call.
        """
        if os.getpid() != self._process:
            raise ConfigError(f"{call}: this process was forked from a worker and is none: call FTLib.init in it")
        self._waiting.append(None)
        try:
            acquired = self._serial.acquire(timeout=self.timeout)
        finally:
            self._waiting.pop()
        if not acquired:
            holder = self._holder.name if self._holder is not None else "another"
            raise RebuildTimeout(f"{call}: thread {holder} was in a call for {self.timeout:g} s")
        try:
            if self._busy:
                raise ConfigError(self._busy.format(call))
            self._holder = self._threads.current()
            self._taken += 1
            try:
                self._busy = _IN_CALL
                result = carry_out()
                self._busy = _IN_CALLBACK
                tell()
                return result
            finally:
                self._busy, self._holder = "", None
        finally:
            self._serial.release()

    @property
    def awaited(self) -> bool:
        """Whether a thread of the program waits for its turn."""
        return bool(self._waiting)

    def returned(self) -> Callable[[], bool]:
        """Tells later whether the program has come to a call since now, has come out of the one that it is in, or has left."""
        taken, busy = self._taken, bool(self._busy)
        return lambda: self.departed or self.awaited or self._taken != taken or (busy and not self._busy)

    def lend(self, carry_out: Callable[[], T]) -> T | None:
        """Carry out what the program did not ask for, on this thread; None where it is somebody's turn, or will be."""
        if self.awaited or not self._serial.acquire(blocking=False):
            return None
        try:
            self._holder, self._busy = self._threads.current(), _IN_CALL
            try:
                return carry_out()
            finally:
                self._busy, self._holder = "", None
        finally:
            self._serial.release()

    def rest(self, seconds: float) -> None:
        """Wait so long, or until the program leaves or has to."""
        until = self._threads.now() + seconds
        while not (self.departed or self.leaving) and (left := until - self._threads.now()) > 0:
            self._threads.sleep(min(left, _LOOK))
