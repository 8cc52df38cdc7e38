"""Whose turn it is to read a link: the loop's, or that of a thread that waits for a message; and how that thread waits."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from .parts import Loop

IN, OUT, GONE = select.EPOLLIN | select.EPOLLRDHUP, select.EPOLLOUT, select.EPOLLHUP | select.EPOLLERR
"""What a reader waits for, a writer, and what is told to whoever waits for nothing."""
_LEASE = 0.002
"""Seconds that a link waits for the next thread that reads it itself, before the loop does so again."""
_GLANCE, _GAZE = 20e-6, 150e-6
"""Seconds in which a thread that waits for a message looks for it again and again until it sleeps: about as long as being woken
takes; and where the message before came as soon as that, the longest turn of a peer that answers short messages.
"""
_LONGEST = 3600.0
"""Seconds of one wait, which is followed by another one: poll takes no more milliseconds than 31 bits hold."""
_SHORT = 1 << 16
"""Bytes that a short message has at most."""


class Turn:
    """See the module. Any thread."""

    def __init__(self, loop: Loop, back: Callable[[], None]) -> None:
        """``back`` is called, on the loop's thread, when the loop is to read again."""
        self._loop = loop
        self._back = back
        self._lock = threading.Lock()
        self._until = 0.0
        self._timed = False
        self.taken = False
        """Whether a thread reads that waits for a message: then the loop does not."""

    @property
    def spared(self) -> bool:
        """Whether the loop need not read, as a thread has done so itself a moment ago."""
        return self._until > 0.0

    def take(self) -> bool:
        """It is the caller's turn until ``hand_back``; False if it is another thread's."""
        with self._lock:
            first, self.taken = not self.taken, True
        return first

    def hand_back(self) -> None:
        """The loop reads again, but not at once: whoever has waited for a message often waits for the next one soon."""
        with self._lock:
            self._until = time.monotonic() + _LEASE
            self.taken = False
            timed, self._timed = self._timed, True
        if not timed:
            self._loop.later(_LEASE, self._lapse)

    def _lapse(self) -> None:
        with self._lock:
            again = self._timed = not self.taken and time.monotonic() < self._until
            if not self.taken and not again:
                self._until = 0.0
        if again:
            self._loop.later(_LEASE, self._lapse)
        else:
            self._back()


class Watch:
    """A thread's wait for news of a path, and of the end of the stream beside it. One thread at a time."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._poll, self._path = select.poll(), -1
        self._prompt = False
        """Whether the message before came as soon as a thread may look for it, and was short."""

    def look(self, news: Callable[[], bool]) -> bool:
        """Whether ``news()`` finds some very soon: falling asleep and being woken costs more than looking some more times."""
        began = time.monotonic()
        glance, until = began + _GLANCE, began + (_GAZE if self._prompt else _GLANCE)
        while not (found := news()) and (now := time.monotonic()) < until:
            if now > glance:
                os.sched_yield()  # whoever else wants this processor comes first
        if found:
            self._prompt = True
        return found

    def wait(self, path: int, seconds: float) -> tuple[bool, bool]:
        """Wait so long at most, or less; whether there are news at all, and whether the stream has ended, where that is not the
        path.
        """
        if path != self._path:  # it was agreed on meanwhile
            self._path = path
            self._poll.register(path, IN)
            self._poll.register(self._stream, IN)
        began = time.monotonic()
        found = self._poll.poll(min(seconds, _LONGEST) * 1000.0)
        self._prompt = time.monotonic() - began < _GAZE
        ended = len(found) > 1 or (len(found) == 1 and found[0][0] != path)
        if ended:
            self._poll.unregister(self._stream)
        return bool(found), ended

    def came(self, count: int) -> None:
        """So many bytes came then."""
        self._prompt &= count < _SHORT
