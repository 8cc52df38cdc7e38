"""SIGTERM drains a worker: finish the call, leave gracefully, exit 0. The handler itself only raises a flag.

The next call tells the others in its trailer, so they go on without a failed operation. A second SIGTERM ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from .turns import Turns

__all__ = ["Drain"]


class Drain:
    """The handler, where the program has none of its own."""

    def __init__(self, turns: Turns, over: Callable[[], bool]) -> None:
        """``over``: whether this worker is no member any more."""
        self._turns = turns
        self._over = over
        self._installed = False
        self._pid = os.getpid()

    def install(self) -> None:
        """Take over SIGTERM if this is the main thread and nobody else has."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._installed = True

    def remove(self) -> None:
        """Give SIGTERM back. Only the main thread can."""
        if self._installed and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is given
        # A forked child inherits the handler, but has nothing to drain; and a worker whose part is over finishes nothing more.
        if os.getpid() != self._pid or self._over():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._turns.leaving:
            os._exit(128 + number)
        else:
            self._turns.leaving = True
