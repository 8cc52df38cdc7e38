"""Bytes that have arrived, and how quickly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .progress import Progress

__all__ = ["Meter"]

_SPAN = 5.0
"""Seconds over which the rate is taken."""


class Meter:
    """Of one recovery; its user sees to it that one thread at a time is here."""

    def __init__(self, total: int, now: Callable[[], float]) -> None:
        """``total``: bytes. ``now``: a clock in seconds."""
        self.total = total
        self.received = 0
        self._now = now
        self._began = now()
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])

    def got(self, count: int) -> None:
        """So many bytes more."""
        self.received += count
        now = self._now()
        self._marks.append((now, self.received))
        while len(self._marks) > 2 and now - self._marks[0][0] > _SPAN:
            self._marks.popleft()

    def progress(self, pending: int, *, braking: bool, replayed: int = 0) -> Progress:
        """How far it is now. The rest is told as it is given."""
        now, (began, before) = self._now(), self._marks[0]
        took = now - began
        rate = (self.received - before) / took if took > 0 else 0.0
        missing = self.total - self.received
        left = 0.0 if missing <= 0 < self.total else missing / rate if self.total and rate > 0 else None
        return Progress(self.total, self.received, rate, left, pending, braking, replayed, now - self._began)
