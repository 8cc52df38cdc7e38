"""Notices that the others wait in a call which this worker has not entered for long, and logs where its training thread is.

The others see it too (they warn whom they wait for), but only this process can say why.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback

from .logs import about
from .plane import Phase, Plane

__all__ = ["StallWatch"]

logger = logging.getLogger("ftlib")


class StallWatch:
    """Asked whenever a peer tells where it is. Used by one thread."""

    def __init__(self, plane: Plane, stall_timeout: float) -> None:
        self._plane = plane
        self._timeout = stall_timeout
        self._since: float | None = None
        self._said = False

    def look(self) -> None:
        """Log this worker's stack, once a stall."""
        plane = self._plane
        with plane.changed:
            wanted = plane.finished + 1
            outside = plane.phase is Phase.ACTIVE and plane.current is None
            waiting = outside and any(current >= wanted for _, current in plane.peers.values())
            thread = plane.training_thread
        now = time.monotonic()
        if not waiting:
            self._since, self._said = None, False
        elif self._since is None:
            self._since = now
        elif now - self._since >= self._timeout and not self._said:
            self._said = True
            frame = sys._current_frames().get(thread)  # noqa: SLF001 - there is no other way to see another thread's stack
            stack = "".join(traceback.format_stack(frame)) if frame is not None else "  the thread has ended\n"
            logger.error(
                "the others have waited in call %d for %.0f s, this worker has not entered it; its training thread is at:\n%s",
                wanted,
                now - self._since,
                stack,
                extra=about(plane, "stalled", call=wanted, waited_seconds=now - self._since),
            )
