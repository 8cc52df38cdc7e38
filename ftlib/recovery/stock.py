"""Buffers for averages that wait to be replayed, touched before they are needed.

Each average that is kept takes the buffers that it came in along, and the next one needs others, as large as all gradients. The
first touch of them takes longer than an average; the others would wait for it.
"""

from __future__ import annotations

import threading

from ..bucket import Layout
from ..follower import kept
from ..pages import touch
from ..staging import Slot
from ..threads import SYSTEM, Threads, stand_back

__all__ = ["Stock"]

_AHEAD = 2
"""Sets beside those that are kept: that of the next call, and that of the one after it, which is made meanwhile."""
_SMALL = 2 << 20
"""Bytes of gradients that are touched in no time."""


class Stock:
    """Of one joiner. ``kept`` and ``close`` are for the training thread."""

    def __init__(self, limit: int, threads: Threads = SYSTEM) -> None:
        """``limit``: bytes of averages that may wait."""
        self._limit = limit
        self._threads = threads
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._sets = 0
        """Beside those that there were from the beginning."""
        self._made: list[Slot] = []
        self._missing = 0
        """Sets that are to be made; while there are any a thread is at it."""
        self._recovery = 0
        """Counts them: a thread ends with the one that it makes them for."""

    def kept(self, layout: Layout, waiting: int) -> list[Slot]:
        """So many averages, of that layout, wait now. What has been made since."""
        with self._lock:
            sets = 1 + kept(layout, self._limit) + self._sets
            more = max(0, waiting + _AHEAD - sets) if layout.nbytes >= _SMALL else 0
            self._sets += more
            if more and not self._missing:
                recovery = self._recovery
                self._threads.thread(lambda: self._make(layout, recovery), "ftlib-stock").start()
            self._missing += more
            made, self._made = self._made, []
            return made

    def close(self) -> None:
        """No more are needed, until another recovery begins. Idempotent."""
        with self._lock:
            self._missing, self._made, self._sets = 0, [], 0
            self._recovery += 1

    def _make(self, layout: Layout, recovery: int) -> None:
        """One by one, so that what is ready can be used. The others' training comes first."""
        stand_back()
        while True:
            for bucket in layout.buckets:
                slot = Slot(bucket, 0)
                touch(slot.buffer)
                with self._lock:
                    if self._recovery != recovery:
                        return
                    self._made.append(slot)
                    self._missing -= bucket is layout.buckets[-1]
                    if not self._missing:
                        return
