"""The order of operations on what arrives from one peer: which message goes to which receive. Pure.

A receive is posted, and the link is asked for one message more. Messages come one after the other, and the first one goes to
the first receive. A receive that is withdrawn (its time-out passed) leaves its message to the next one, so that nothing is lost
and nothing is overtaken; what nobody waits for is kept.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

R = TypeVar("R")
M = TypeVar("M")


class Order(Generic[R, M]):
    """Receives ``R`` and messages ``M`` of one direction of a stream."""

    def __init__(self) -> None:
        self._posted: deque[R] = deque()
        """Receives whose message has not begun to arrive."""
        self._kept: deque[M] = deque()
        """Complete messages that no receive has asked for."""
        self._coming: M | None = None
        """The message that has begun to arrive."""
        self._taker: R | None = None
        """The receive that it goes to."""
        self._asked = 0
        """Messages that the link was asked for and that have not begun to arrive."""

    def post(self, receive: R) -> tuple[M | None, bool]:
        """A receive: the complete message that it gets at once, if any, and whether to ask the link for one message more."""
        if self._kept:
            return self._kept.popleft(), False
        if self._coming is not None and self._taker is None:
            self._taker = receive
            return None, False
        self._posted.append(receive)
        more = self._asked < len(self._posted)
        self._asked += more
        return None, more

    def begin(self, message: M) -> R | None:
        """A message begins to arrive: the receive that it goes to, as it looks now."""
        self._asked -= 1
        self._coming, self._taker = message, self._first()
        return self._taker

    def end(self) -> R | None:
        """The message that was coming is complete: the receive that gets it. None: it is kept."""
        message, taker = self._coming, self._taker
        self._coming = self._taker = None
        if taker is None and message is not None:
            self._kept.append(message)
        return taker

    def withdraw(self, receive: R) -> tuple[bool, M | None]:
        """Take ``receive`` back; False if it was given its message, or forgotten, before. And what has begun to come for it."""
        if self._taker is receive:
            self._taker = self._first()
            return True, self._coming
        if receive not in self._posted:
            return False, None
        self._posted.remove(receive)
        return True, None

    def clear(self, *, keep: bool) -> list[R]:
        """Nothing comes any more; returns the receives that were pending. ``keep``: those to come still get what is kept."""
        pending = [*([] if self._taker is None else [self._taker]), *self._posted]
        self._posted.clear()
        if not keep:
            self._kept.clear()
        self._coming = self._taker = None
        return pending

    @property
    def kept(self) -> int:
        """How many complete messages no receive has asked for."""
        return len(self._kept)

    def __len__(self) -> int:
        return len(self._posted) + (self._taker is not None)

    def _first(self) -> R | None:
        return self._posted.popleft() if self._posted else None
