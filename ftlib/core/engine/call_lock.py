"""The call lock: calls of several threads are carried out one by one, and none once the program has left.

The lock outlives the lifetimes of a worker (see ``rejoin``): what the program wants does not change when it is excluded.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from ...common.threads import SYSTEM, Thread, Threads
from ...errors import ConfigError, RebuildTimeout

T = TypeVar("T")

_IN_CALL = "{} was called within another call, from a signal handler or a state function; return from it first"
_IN_CALLBACK = "{}: a callback of on_view_change cannot average, as the call that tells it has not returned; act after it"
_IN_OPEN = "{} was called while {} is under way in backward, and calls are carried out one by one: call it after backward"
_LOOK = 0.05
"""Seconds between two checks whether the program leaves. No event: a signal handler may leave while its thread would wait."""


class CallLock:
    """The call lock of one process: its threads take turns."""

    def __init__(
        self,
        timeout: float,
        threads: Threads = SYSTEM,
        stays: Callable[[], bool] = lambda: False,
        blocking: Callable[[], str] = str,
    ) -> None:
        """``timeout``: seconds that a thread waits for its turn. ``stays``: returns True while this worker goes on though there
        was a notice (see ``Handover``). ``blocking``: returns in words whom the call under way waits for.
        """
        self.timeout = timeout
        self._process = os.getpid()
        self._threads = threads
        self._serial = threads.turn()
        """A turn may be given back by another thread: hooks of a backward on a GPU run on torch's own, its end perhaps not."""
        self._waiting: deque[None] = deque()
        """One entry for each thread that waits for its turn. Not an integer: several threads count at the same time."""
        self._within: set[Thread] = set()
        """The threads that are in ``take``."""
        self._taken = 0
        """How often the program took its turn."""
        self._busy = ""
        """The error text for a call that the thread in ``_holder`` makes within its turn; empty outside of calls."""
        self._open: object = None
        """The open call for which the holder keeps its turn; None if there is none."""
        self._holder: Thread | None = None
        self._stays = stays
        self._blocking = blocking
        self.noticed = False
        """True once a notice said that this worker has to leave (see ``drain``): set by any thread, or a signal handler."""
        self.own_point = False
        """True if the program checks for notices, and ends its loop by itself."""
        self.departed = False
        """True once the program has left or closed: it enters no call any more."""

    def inside(self) -> bool:
        """True if this thread is within a call: in a callback, a state function or a signal handler."""
        return bool(self._busy) and self._holder is self._threads.current()

    def is_leaving(self) -> bool:
        """True once a notice said that this worker has to leave, unless it stays for a while."""
        return self.noticed and not self._stays()

    @property
    def leaving(self) -> bool:
        """As ``is_leaving``."""
        return self.is_leaving()

    def leave(self) -> None:
        """A notice said that this worker has to leave. Any thread, signal handlers too."""
        self.noticed = True

    def ends_itself(self) -> None:
        """The program checks for notices, and ends its loop by itself."""
        self.own_point = True

    def depart(self) -> None:
        """The program has left, or closed: it enters no call any more."""
        self.departed = True

    @property
    def carrying(self) -> bool:
        """True while a call is carried out, or is open."""
        return self._busy is _IN_CALL or self._open is not None

    @property
    def says_goodbye(self) -> bool:
        """True if the next attempt announces that this member leaves after its call."""
        return self.leaving and not self.own_point

    def take(self, call: str, carry_out: Callable[[], T], tell: Callable[[], None]) -> T:
        """Carry out the call named ``call`` when it is this thread's turn; then ``tell`` runs the program's callbacks.

        Raises RebuildTimeout if another thread keeps its turn for ``timeout``, ConfigError within a call.
        """
        if os.getpid() != self._process:
            raise ConfigError(f"{call}: this process was forked from a worker and is none: call FTLib.init in it")
        thread = self._threads.current()
        if thread in self._within or (self._busy and self._holder is thread):
            raise ConfigError((self._busy or _IN_CALL).format(call))
        # Before it waits: a signal handler may come at any moment, and would wait for its own thread.
        self._within.add(thread)
        try:
            self._waiting.append(None)
            try:
                acquired = self._serial.acquire(timeout=self.timeout)
            finally:
                self._waiting.pop()
            if not acquired:
                holder = self._holder.name if self._holder is not None else "another"
                whom = f"; {text}" if (text := self._blocking()) else ""
                raise RebuildTimeout(f"{call}: thread {holder} was in a call for {self.timeout:g} s{whom}")
            try:
                self._holder, self._busy = thread, _IN_CALL
                self._taken += 1
                result = carry_out()
                self._busy = _IN_CALLBACK
                tell()
                return result
            finally:
                self._busy, self._holder = "", None
                self._serial.release()
        finally:
            self._within.discard(thread)

    def try_open(self, name: str, call: object) -> bool:
        """Take this thread's turn for ``call``, an open call of that name, and keep it until ``end_open`` or ``finish_open``,
        on whichever thread. False if it would have to wait for another thread, or is within another call of this one.
        """
        if self.awaited or os.getpid() != self._process or not self._serial.acquire(blocking=False):
            return False
        self._holder, self._open, self._busy = self._threads.current(), call, _IN_OPEN.format("{}", name)
        self._taken += 1
        return True

    def finish_open(self, carry_out: Callable[[], T], tell: Callable[[], None]) -> T:
        """As ``take``, in the turn that ``try_open`` took; then gives it back."""
        try:
            self._holder, self._busy = self._threads.current(), _IN_CALL
            result = carry_out()
            self._busy = _IN_CALLBACK
            tell()
            return result
        finally:
            self.end_open()

    def end_open(self) -> None:
        """Give back the turn that ``try_open`` took."""
        self._busy, self._open, self._holder = "", None, None
        self._serial.release()

    def keeps_open(self, call: object) -> bool:
        """True while a thread keeps its turn for ``call``."""
        return self._open is call

    @property
    def awaited(self) -> bool:
        """True while a thread of the program waits for its turn."""
        return bool(self._waiting)

    def returned(self) -> Callable[[], bool]:
        """A function that returns True once the program has come to a call after now, left its present call, or departed."""
        taken, busy = self._taken, bool(self._busy)
        return lambda: self.departed or self.awaited or self._taken != taken or (busy and not self._busy)

    def lend(self, carry_out: Callable[[], T]) -> T | None:
        """Carry out a call that the program did not ask for, on this thread; None if another thread has or awaits its turn."""
        if self.awaited or not self._serial.acquire(blocking=False):
            return None
        try:
            self._holder, self._busy = self._threads.current(), _IN_CALL
            return carry_out()
        finally:
            self._busy, self._holder = "", None
            self._serial.release()

    def rest(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the program has left or has to leave."""
        until = self._threads.now() + seconds
        while not (self.departed or self.leaving) and (left := until - self._threads.now()) > 0:
            self._threads.sleep(min(left, _LOOK))
