"""Threads and time: moments in which a process may start no more threads, and a clock that goes on by hand."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ftlib.common.threads import Threads


class Clock(Threads):
    """Goes on by hand."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at


@contextlib.contextmanager
def no_threads(name: str) -> Iterator[list[str]]:
    """No thread whose name begins with ``name`` can be started meanwhile. Gives the names of those that were refused."""
    start, refused = threading.Thread.start, list[str]()

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuse  # type: ignore[method-assign]
    try:
        yield refused
    finally:
        threading.Thread.start = start  # type: ignore[method-assign]
