"""Buffers for averages that wait to be replayed, touched before they are needed.

A kept average keeps the buffers in which it arrived, so the next average needs new ones, as large as all gradients. Their first
touch takes longer than an average, and the other members would wait for it.
"""

from __future__ import annotations

import threading

from ...common.memory import room, touch
from ...common.threads import SYSTEM, Threads, stand_back
from ...core.calls.learner import kept
from ...core.tensors.layout import Layout
from ...core.tensors.staging import Allocate, Slot

_AHEAD = 2
"""Sets besides the kept ones: for the next call, and for the one after it."""
_SMALL = 2 << 20
"""Bytes of gradients whose first touch does not matter."""


class SlotPool:
    """The slots of one joiner. ``kept`` and ``close`` are for the training thread."""

    def __init__(self, limit: int, threads: Threads = SYSTEM, allocate: Allocate = room) -> None:
        """``limit``: bytes of averages that may wait. ``allocate``: see ``Framework``; operations work on the slots."""
        self._allocate = allocate
        self._limit = limit
        self._threads = threads
        self._lock = threading.Lock()
        # Guarded by the lock:
        self._sets = 0
        """Number of sets made in addition to the initial ones."""
        self._made: list[Slot] = []
        self._missing = 0
        """Number of sets still to be made; a thread makes them while it is not 0."""
        self._recovery = 0
        """Number of the recovery: a thread ends with the recovery for which it works."""

    def kept(self, layout: Layout, waiting: int) -> list[Slot]:
        """``waiting`` averages of that layout wait now. Returns the buffers made since the last call."""
        with self._lock:
            sets = 1 + kept(layout, self._limit) + self._sets
            more = max(0, waiting + _AHEAD - sets) if layout.nbytes >= _SMALL else 0
            if more and not self._missing:
                recovery = self._recovery
                try:
                    self._threads.thread(lambda: self._make(layout, recovery), "ftlib-slots").start()
                except RuntimeError:  # no thread for it now: the next average tries again, and this one takes new memory
                    more = 0
            self._sets += more
            self._missing += more
            made, self._made = self._made, []
            return made

    def close(self) -> None:
        """No more slots are needed until another recovery begins. Idempotent."""
        with self._lock:
            self._missing, self._made, self._sets = 0, [], 0
            self._recovery += 1

    def _make(self, layout: Layout, recovery: int) -> None:
        """Make slots one by one, so that each can be used at once. Low priority: training comes first."""
        stand_back()
        while True:
            for bucket in layout.buckets:
                try:
                    slot = Slot(bucket, 0, self._allocate)
                    touch(slot.buffer)
                except Exception:  # noqa: BLE001 - no memory: whoever needs it says so, and the next average tries again
                    with self._lock:
                        if self._recovery == recovery:
                            self._sets -= self._missing
                            self._missing = 0
                    return
                with self._lock:
                    if self._recovery != recovery:
                        return
                    self._made.append(slot)
                    self._missing -= bucket is layout.buckets[-1]
                    if not self._missing:
                        return
