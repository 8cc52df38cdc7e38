"""What the log says while a state arrives: a line now and then, and one at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Self

from ..logs import about
from ..plane import Plane
from ..units import size
from .meter import Meter
from .progress import Progress

__all__ = ["EVERY", "Arrival", "Bulletin"]

logger = logging.getLogger("ftlib")

EVERY = 5.0
"""Seconds between two lines."""


class Bulletin:
    """Of one recovery. Any thread that is at work on it tells, so that none is needed for this alone."""

    def __init__(self, plane: Plane, progress: Callable[[], Progress]) -> None:
        """``progress``: how far it is."""
        self._plane = plane
        self._progress = progress
        self._lock = plane.threads.lock()
        self._due = plane.threads.now() + EVERY

    def tell(self) -> None:
        """Log how far it is, where nobody has for a while. Not to be called with a lock held."""
        now = self._plane.threads.now()
        if now < self._due:
            return
        with self._lock:
            if now < self._due:
                return
            self._due = now + EVERY
        progress = self._progress()
        logger.info("getting the state: %s", progress, extra=about(self._plane, "recovery", **_fields(progress)))

    def caught_up(self, number: int) -> None:
        """Say that the state is here as it was on entry to call ``number``, to which it was brought beside the training."""
        done = self._progress()
        text = "caught up: %s of state in %.1f s (%s/s), %d average%s replayed, counts from call %d on"
        rate = done.total / done.seconds if done.seconds > 0 else 0.0
        extra = about(self._plane, "caught_up", call=number + 1, **{**_fields(done), "bytes_per_second": rate})
        plural = "" if done.replayed == 1 else "s"
        logger.info(text, size(done.total), done.seconds, size(rate), done.replayed, plural, number + 1, extra=extra)


class Arrival:
    """Bytes of a state that comes while this member does nothing else. Used by one thread, as a context manager."""

    def __init__(self, plane: Plane, *, waited_for: bool) -> None:
        """``waited_for``: whether the others wait meanwhile."""
        self._plane = plane
        self._waited_for = waited_for
        self._meter = Meter(0, plane.threads.now)
        self._latest = self._now()
        """Told to others as it is: a moment is never changed."""
        self._bulletin = Bulletin(plane, lambda: self._latest)

    def __enter__(self) -> Self:
        self._plane.recovery = lambda: self._latest
        return self

    def __exit__(self, *_: object) -> None:
        self._plane.recovery = None

    def got(self, count: int, total: int) -> None:
        """So many bytes more, of so many (0: not known yet)."""
        self._meter.total = total
        self._meter.got(count)
        self._latest = self._now()
        self._bulletin.tell()

    def _now(self) -> Progress:
        return self._meter.progress(0, braking=self._waited_for)


def _fields(progress: Progress) -> dict[str, object]:
    """For formatters: the names say the unit."""
    values = asdict(progress)
    names = {
        "total": "state_bytes",
        "got": "received_bytes",
        "rate": "bytes_per_second",
        "left": "seconds_left",
        "braking": "waited_for",
    }
    return {names.get(name, name): value for name, value in values.items()}
