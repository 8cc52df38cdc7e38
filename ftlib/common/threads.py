"""Clock, threads, locks and queues: the operating system's here; a simulation of this code substitutes its own.

Code that works on a call gets them only from here. So a simulated process can run that code in virtual time, and a seed
decides every switch between its threads.
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

LONGEST = 20 * 86400.0
"""Seconds that one wait may be. poll takes milliseconds in 31 bits, hardly more than this, and other waits overflow later: who
waits for longer does so in parts, or gives up by then.
"""
_NICE = 10


class Thread(Protocol):
    """The part of ``threading.Thread`` that is used here."""

    @property
    def name(self) -> str:
        """The thread's name, for people."""

    @property
    def ident(self) -> int | None:
        """The thread's identifier; None before ``start``."""

    def start(self) -> None:
        """Begin to run."""

    def join(self, timeout: float | None = None) -> None:
        """Wait at most ``timeout`` seconds for the thread to end."""


class Threads:
    """The clock, threads, locks and queues of the operating system."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """Seconds on a clock that never jumps back."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for ``seconds``."""
        time.sleep(seconds)

    def thread(self, target: Callable[[], None], name: str) -> Thread:
        """A new daemon thread, not yet started."""
        return threading.Thread(target=target, name=name, daemon=True)

    def hurry(self) -> None:
        """Give the calling thread the processor sooner, in shorter slices: others wait for it, and it computes little."""
        short_slices()

    current: Callable[[], Thread] = staticmethod(threading.current_thread)
    """The calling thread."""

    def condition(self) -> threading.Condition:
        """A new condition with a reentrant lock."""
        return threading.Condition()

    def lock(self) -> Any:
        """A new reentrant lock."""
        return threading.RLock()

    def turn(self) -> Any:
        """A new lock that whoever takes it may have given back by another thread."""
        return threading.Lock()

    def queue(self) -> queue.SimpleQueue[Any]:
        """A new, unbounded queue."""
        return queue.SimpleQueue()


SYSTEM = Threads()


def stand_back() -> None:
    """Lower the calling thread's priority from now on, if the system lets it: others run first where processors are scarce."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
