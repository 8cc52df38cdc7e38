"""A stream of a device: operations are launched later than they are asked for, run in order, and are marked by events.

As with NCCL in its non-blocking mode, a call returns before its operations are launched. An event marks the end of what was
launched before it was recorded, and of nothing else: one that is recorded too early is done at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from ftlib.frameworks.background import start_task

Kernel = Callable[[], None]
"""What runs on the device. It must not raise."""


class Event:
    """Marks a place in a stream."""

    def __init__(self, stream: Stream, place: int) -> None:
        self._stream, self._place = stream, place

    def query(self) -> bool:
        """Whether all that was launched before the event was recorded has ended."""
        return self._stream.ended >= self._place


class Stream:
    """Any thread may call anything. It has a thread of its own while there is something to do."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # Guarded by it:
        self._waiting: deque[tuple[float, Kernel]] = deque()
        """What has not begun, each with the time of its launch."""
        self._asked = 0
        self._hastened = False
        self._running = False
        self.ended = 0
        """Number of kernels that have ended."""

    @property
    def launching(self) -> bool:
        """Whether something that was asked for has not been launched yet."""
        with self._changed:
            return bool(self._waiting) and self._waiting[-1][0] > time.monotonic() and not self._hastened

    @property
    def idle(self) -> bool:
        """Whether all that was asked for has ended."""
        with self._changed:
            return self.ended == self._asked

    def enqueue(self, kernel: Kernel, delay: float) -> None:
        """Ask for a kernel, which is launched ``delay`` seconds later."""
        with self._changed:
            self._asked += 1
            self._waiting.append((time.monotonic() + delay, kernel))
            running, self._running = self._running, True
        if not running:
            start_task("rehearsal-device", self._run)

    def record(self) -> Event:
        """An event after everything that has been launched."""
        now = time.monotonic()
        with self._changed:
            unlaunched = 0 if self._hastened else sum(at > now for at, _ in self._waiting)
            return Event(self, self._asked - unlaunched)

    def hasten(self) -> None:
        """Launch everything at once from now on."""
        with self._changed:
            self._hastened = True
            self._changed.notify()

    def _run(self) -> None:
        while (kernel := self._next()) is not None:
            kernel()
            del kernel  # it holds tensors
            with self._changed:
                self.ended += 1

    def _next(self) -> Kernel | None:
        """Wait for the launch of the next kernel. None if there is none."""
        with self._changed:
            while self._waiting:
                left = 0.0 if self._hastened else self._waiting[0][0] - time.monotonic()
                if left <= 0:
                    return self._waiting.popleft()[1]
                self._changed.wait(left)
            self._running = False
            return None
