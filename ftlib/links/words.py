"""Words beside the messages of a link: nobody has to ask for them, so they come also where no message is awaited."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .parts import guarded
from .wire import WireError

_MOST = 256
"""The most words that wait for a listener."""


class Words:
    """What the peer has said, in order, until somebody listens; then it is told at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listener: Callable[[bytes], None] | None = None
        self._waiting: list[bytes] = []
        self._ended: Callable[[BaseException], None] | None = None
        self._error: BaseException | None = None

    def listen(self, listener: Callable[[bytes], None], ended: Callable[[BaseException], None]) -> None:
        """Give every word to ``listener``, on the thread that reads, and the link's end to ``ended``. Once."""
        error = None
        while self._listener is None:
            with self._lock:
                words, self._waiting = self._waiting, []
                if not words:
                    self._listener, self._ended, error = listener, ended, self._error
            for word in words:
                guarded(listener, word)
        if error is not None:
            guarded(ended, error)

    def end(self, error: BaseException) -> None:
        """The link has ended. The first error counts."""
        with self._lock:
            first, self._error = self._error is None, self._error or error
            ended = self._ended
        if first and ended is not None:
            guarded(ended, error)

    def came(self, word: bytes) -> None:
        """The peer has said something. WireError if nobody listens for long."""
        with self._lock:
            listener = self._listener
            if listener is None:
                self._waiting.append(word)
            full = len(self._waiting) > _MOST
        if full:
            raise WireError("too many words that nobody listens to")
        if listener is not None:
            guarded(listener, word)
