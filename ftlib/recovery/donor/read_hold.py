"""A read hold: at a donor a call does not end before requests about the state on entry to it are answered.

A request names the call in advance, so it arrives before the call is entered, and nobody waits for it. Another thread makes the
answer during the call; at the end of the call the training thread waits for incomplete answers.

A request that has waited for long is answered "ask again". The hold stays until the request is back: otherwise a call that is
short and far from the next could pass in between.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from consensus import RefusalError

from ...common.refusals import Refusal
from ...core.plane.phase import Phase
from ...core.plane.plane import Plane

PATIENCE = 1.0
"""Maximum seconds for which the end of a call is delayed."""
GRACE = 0.5
"""Seconds within which a request that was answered "ask again" is expected back."""


class ReadHold:
    """The read hold of one member in one lifetime. Guarded by the plane's lock."""

    def __init__(self, plane: Plane) -> None:
        """No request is open."""
        self._plane = plane
        self._open: Counter[int] = Counter()
        """Number of open requests, by the call whose state they need."""
        self._again: dict[int, list[float]] = {}
        """By call: until when requests that were answered "ask again" are expected back, oldest first."""

    @contextmanager
    def asking(self, version: int) -> Iterator[None]:
        """Within this context call ``version`` does not end, whether it was entered before or is entered meanwhile."""
        plane, later = self._plane, False
        with plane.changed:
            self._open[version] += 1
            if expected := self._again.get(version):
                expected.pop(0)
        try:
            yield
        except RefusalError as error:
            later = error.status == Refusal.LATER
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
        """Expect no request back: in the new view its sender may be gone, or need something else."""
        with self._plane.changed:
            self._again.clear()
            self._plane.changed.notify_all()

    def ending(self, number: int) -> None:
        """The operations of call ``number`` have ended: wait. On the training thread, before any other code sees the end."""
        if not self._open and not self._again:
            return
        plane = self._plane
        with plane.changed:
            now = plane.threads.now()
            until = now + PATIENCE
            # A backup worker's call has no state of its own: no request is answered in it.
            while (left := min(until, self._until(number)) - now) > 0 and plane.in_call(number) and plane.phase is Phase.ACTIVE:
                plane.changed.wait(left)
                now = plane.threads.now()
            self._again = {version: expected for version, expected in self._again.items() if version > number}

    def _until(self, number: int) -> float:
        """Until when the end of call ``number`` is delayed at present. With the lock held."""
        return math.inf if number in self._open else max(self._again.get(number, ()), default=-math.inf)
