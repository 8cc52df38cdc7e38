"""Follows something outside that changes: a file, what a command prints. On a thread, so that a slow one holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ...errors import ConfigError

EVERY = 1.0
"""Seconds between two looks."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(Protocol[T_co]):
    """What can be looked at again and again."""

    def __call__(self) -> T_co:
        """How it is now. ConfigError says why that cannot be known."""
        ...

    def close(self) -> None:
        """Have a look that is under way come to its end at once. From another thread."""


class Watch(Generic[T]):
    """Looks every second, and has a loop told when what it sees is not what it saw before."""

    def __init__(
        self, source: Source[T], known: T, loop: asyncio.AbstractEventLoop, tell: Callable[[T | ConfigError], None]
    ) -> None:
        """``known``: what the owner knows already. ``tell``: called on ``loop`` with what is new, or with why it is unknown."""
        self._source, self._known, self._loop, self._tell = source, known, loop, tell
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ftlib-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; nothing is told any more. Does not wait for the thread."""
        self._closed.set()
        self._source.close()

    def _run(self) -> None:
        complaint = ""
        while not self._closed.wait(EVERY):
            try:
                found = self._source()
            except ConfigError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    self._hand_over(error)
                continue
            complaint = ""
            if found != self._known:
                self._known = found
                self._hand_over(found)

    def _hand_over(self, found: T | ConfigError) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._pass_on, found)

    def _pass_on(self, found: T | ConfigError) -> None:
        if not self._closed.is_set():
            self._tell(found)
