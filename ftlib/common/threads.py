"""Clock, threads and what they meet in: the operating system's here, others' in a simulation of this very code.

Whoever works on a call asks the operating system for none of these by itself, so that a simulated process can run it in
virtual time, with every switch between its threads decided by a seed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from consensus import short_slices

_NICE = 10


class Thread(Protocol):
    """Of ``threading.Thread`` what is used of it."""

    @property
    def name(self) -> str:
        """What people call it."""

    @property
    def ident(self) -> int | None:
        """None before it was started."""

    def start(self) -> None:
        """Begin to run."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, at most ``timeout`` seconds."""


class Threads:
    """The operating system's."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds on a clock that never jumps back."""

    def sleep(self, seconds: float) -> None:
        """The thread that asks does nothing for so long."""
        time.sleep(seconds)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """A thread that does not keep the process alive; to be started."""
        return threading.Thread(target=target, name=name, daemon=True)

    def hurry(self) -> None:
        """The thread that asks is waited for by others, and computes little."""
        short_slices()

    current: Callable[[], Thread] = staticmethod(threading.current_thread)
    """The thread that asks."""

    def condition(self) -> threading.Condition:
        """A new one, with a lock that its holder may take again."""
        return threading.Condition()

    def lock(self) -> Any:
        """A lock that its holder may take again."""
        return threading.RLock()

    def queue(self) -> queue.SimpleQueue[Any]:
        """A new, unbounded one."""
        return queue.SimpleQueue()


SYSTEM = Threads()


def stand_back() -> None:
    """From now on this thread comes after others where there are not processors enough, if the system lets it."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
