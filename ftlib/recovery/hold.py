"""A call does not end at a donor before questions about the state on entry to it are answered.

Whoever asks names the call in advance, so that nobody waits for the question: it is there already when the call is entered. The
answer is made on a thread of its own while the call is under way; what the call still takes then is waited for at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from ..phase import Phase
from ..plane import Plane

__all__ = ["Hold"]

PATIENCE = 1.0
"""Seconds that a call is kept from ending, at most."""


class Hold:
    """Of one member in one lifetime. Guarded by the plane's lock."""

    def __init__(self, plane: Plane) -> None:
        """Nobody asks."""
        self._plane = plane
        self._open: Counter[int] = Counter()
        """Questions that are not answered yet, by the call that they are about."""

    @contextmanager
    def asking(self, version: int) -> Iterator[None]:
        """Meanwhile call ``version`` does not end, whenever it is entered."""
        changed = self._plane.changed
        with changed:
            self._open[version] += 1
        try:
            yield
        finally:
            with changed:
                self._open[version] -= 1
                if not self._open[version]:
                    del self._open[version]
                    changed.notify_all()

    def ending(self, number: int) -> None:
        """The operations of call ``number`` have ended. On the training thread, before anything else sees that."""
        if not self._open:
            return
        plane = self._plane
        with plane.changed:  # a deputy's call tells nothing of the state, so that nobody is answered in it
            plane.changed.wait_for(
                lambda: number not in self._open or not plane.in_call(number) or plane.phase is not Phase.ACTIVE, PATIENCE
            )
