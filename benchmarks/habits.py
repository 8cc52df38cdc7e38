"""What a worker does beside training when it gets SIGUSR2: see ``habit`` of a test worker's ``Task``."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
from typing import Any

from ftlib import FTLib
from tests.processes.worker import Lines

__all__ = ["Hang", "HoldGil"]


class HoldGil:
    """SIGUSR2: no other thread of the interpreter runs for ``seconds``, as with a C extension that does not release it.

    It begins at whatever moment of its loop the training thread is, inside of calls too. Asleep the first time, spinning the
    next, and so on.
    """

    def __init__(self, _ft: FTLib, lines: Lines, seconds: float) -> None:
        self._lines, self._seconds = lines, seconds
        self._count = 0
        signal.signal(signal.SIGUSR2, self._hold)

    def __call__(self) -> None:
        """Before a call: nothing."""

    def _hold(self, *_: object) -> None:
        began = time.monotonic()
        if self._count % 2:
            deadline = began + self._seconds
            next(filter(deadline.__lt__, iter(time.monotonic, None)))  # all of it in C: no bytecode, so no switch
        else:
            ctypes.PyDLL(None).usleep(int(self._seconds * 1e6))  # the hold itself: PyDLL keeps the GIL in its calls
        self._lines.write(event="held", how="spinning" if self._count % 2 else "asleep", began=began)
        self._count += 1


class Hang:
    """SIGUSR2: the training thread stops for ever before its next call; all other threads go on."""

    def __init__(self, _ft: FTLib, lines: Lines) -> None:
        self._lines = lines
        self._asked = False
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def __call__(self) -> None:
        """Before a call."""
        if self._asked:
            self._lines.write(event="hang")
            threading.Event().wait()
