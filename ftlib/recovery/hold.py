"""A call does not end at a donor before questions about the state on entry to it are answered.

Whoever asks names the call in advance, so that nobody waits for the question: it is there already when the call is entered. The
answer is made on a thread of its own while the call is under way; what the call still takes then is waited for at its end.

A question that has waited for long is told to be asked again. For that moment it is as if it were there: else calls that are
short and far apart could pass in just these moments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..phase import Phase
from ..plane import Plane
from .fetch import LATER

__all__ = ["Hold"]

PATIENCE = 1.0
"""Seconds that a call is kept from ending, at most."""
GRACE = 0.5
"""Seconds in which whoever was told to ask again does so."""


class Hold:
    """Of one member in one lifetime. Guarded by the plane's lock."""

    def __init__(self, plane: Plane) -> None:
        """Nobody asks."""
        self._plane = plane
        self._open: Counter[int] = Counter()
        """Questions that are not answered yet, by the call that they are about."""
        self._again: dict[int, list[float]] = {}
        """Until when those that were told to be asked again are expected, oldest first."""

    @contextmanager
    def asking(self, version: int) -> Iterator[None]:
        """Meanwhile call ``version`` does not end, whenever it is entered."""
        plane, later = self._plane, False
        with plane.changed:
            self._open[version] += 1
            if expected := self._again.get(version):
                expected.pop(0)
        try:
            yield
        except LookupError as error:
            later = LATER in str(error)
            raise
        finally:
            with plane.changed:
                self._open[version] -= 1
                if not self._open[version]:
                    del self._open[version]
                if later and plane.finished < version:
                    self._again.setdefault(version, []).append(plane.threads.now() + GRACE)
                plane.changed.notify_all()

    def forget(self) -> None:
        """Whoever was told to ask again may be gone, or asks for something else in the new view."""
        with self._plane.changed:
            self._again.clear()
            self._plane.changed.notify_all()

    def ending(self, number: int) -> None:
        """The operations of call ``number`` have ended. On the training thread, before anything else sees that."""
        if not self._open and not self._again:
            return
        plane = self._plane
        with plane.changed:
            now = plane.threads.now()
            until = now + PATIENCE
            # A deputy's call tells nothing of the state, so that nobody is answered in it.
            while (left := min(until, self._until(number)) - now) > 0 and plane.in_call(number) and plane.phase is Phase.ACTIVE:
                plane.changed.wait(left)
                now = plane.threads.now()
            self._again = {version: expected for version, expected in self._again.items() if version > number}

    def _until(self, number: int) -> float:
        """When to end call ``number``, unless something happens before. Within the lock."""
        return math.inf if number in self._open else max(self._again.get(number, ()), default=-math.inf)
