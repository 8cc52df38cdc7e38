"""Log lines while a state arrives: one now and then, and one at the end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

from consensus import CarefulLogger

from ...common.units import size
from ...core.plane.plane import Plane
from ...core.plane.progress import Progress

_SPAN = 5.0
"""Seconds over which the rate is measured."""


class Meter:
    """Bytes that have arrived, and how quickly. Used by one thread at a time."""

    def __init__(self, total: int, now: Callable[[], float]) -> None:
        """``total``: bytes. ``now``: a clock in seconds."""
        self.total = total
        self.received = 0
        self._now = now
        self._began = now()
        self._marks: deque[tuple[float, int]] = deque([(self._began, 0)])

    def expect(self, total: int) -> None:
        """Set the total number of bytes."""
        self.total = total

    def got(self, count: int) -> None:
        """``count`` more bytes have arrived."""
        self.received += count
        now = self._now()
        self._marks.append((now, self.received))
        while len(self._marks) > 2 and now - self._marks[0][0] > _SPAN:
            self._marks.popleft()

    def progress(self, pending: int, *, braking: bool, replayed: int = 0) -> Progress:
        """The progress now. The arguments are passed on as they are."""
        now, (began, before) = self._now(), self._marks[0]
        took = now - began
        rate = (self.received - before) / took if took > 0 else 0.0
        missing = self.total - self.received
        left = 0.0 if missing <= 0 < self.total else missing / rate if self.total and rate > 0 else None
        return Progress(self.total, self.received, rate, left, pending, braking, replayed, now - self._began)


logger = CarefulLogger("ftlib")

EVERY = 5.0
"""Seconds between two lines."""


class ProgressLog:
    """The progress log of one recovery. The recovery's threads call ``update``, so that it needs no thread of its own."""

    def __init__(self, plane: Plane, progress: Callable[[], Progress]) -> None:
        """``progress``: returns the recovery's progress."""
        self._plane = plane
        self._progress = progress
        self._lock = plane.threads.lock()
        self._due = plane.threads.now() + EVERY

    def update(self) -> None:
        """Log the progress, if it was not logged lately. Must not be called with a lock held."""
        now = self._plane.threads.now()
        if now < self._due:
            return
        with self._lock:
            if now < self._due:
                return
            self._due = now + EVERY
        progress = self._progress()
        logger.info("getting the state: %s", progress, extra=self._plane.about("recovery", **_fields(progress)))

    def caught_up(self, number: int) -> None:
        """Log that this member has the state on entry to call ``number``."""
        done = self._progress()
        text = "caught up: %s of state in %.1f s (%s/s), %d average%s replayed, counts from call %d on"
        rate = done.total / done.seconds if done.seconds > 0 else 0.0
        extra = self._plane.about("caught_up", call=number + 1, **{**_fields(done), "bytes_per_second": rate})
        plural = "" if done.replayed == 1 else "s"
        logger.info(text, size(done.total), done.seconds, size(rate), done.replayed, plural, number + 1, extra=extra)


class ArrivingState:
    """Progress of a state that arrives while this member does nothing else. Used by one thread, as a context manager."""

    def __init__(self, plane: Plane, *, waited_for: bool) -> None:
        """``waited_for``: True if the others wait meanwhile."""
        self._plane = plane
        self._waited_for = waited_for
        self._meter = Meter(0, plane.threads.now)
        self._latest = self._now()
        """The latest progress. Read by other threads: replaced, never changed."""
        self._progress_log = ProgressLog(plane, lambda: self._latest)

    def __enter__(self) -> Self:
        self._plane.recovers(lambda: self._latest)
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.recovers(None)

    def got(self, count: int, total: int) -> None:
        """``count`` more bytes have arrived, of ``total`` (0: unknown yet)."""
        self._meter.expect(total)
        self._meter.got(count)
        self._latest = self._now()
        self._progress_log.update()

    def _now(self) -> Progress:
        return self._meter.progress(0, braking=self._waited_for)


def _fields(progress: Progress) -> dict[str, object]:
    """The fields for log formatters, under names that say the unit."""
    values = asdict(progress)
    names = {
        "total": "state_bytes",
        "got": "received_bytes",
        "rate": "bytes_per_second",
        "left": "seconds_left",
        "braking": "waited_for",
    }
    return {names.get(name, name): value for name, value in values.items()}
