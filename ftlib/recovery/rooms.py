"""Memory for the copies that a donor makes: touched before they are made, and used again for the next ones.

The first touch of memory costs more than the copy into it: several times as much, and far more in a virtual machine that gives
back what it does not use. An optimizer's step would wait for that.
"""

from __future__ import annotations

import queue
import weakref

import torch

from ..pages import huge, touch
from ..threads import SYSTEM, Threads, stand_back
from .stripes import SMALLEST

__all__ = ["Rooms"]


class Rooms:
    """Of one member. Any thread may call anything."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        """There are none."""
        self._threads = threads
        self._lock = threads.lock()
        # Guarded by the lock:
        self._free: list[torch.Tensor] = []
        self._wanted = 0
        """Bytes that are to be free; 0 while no thread sees to that."""
        self._left: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        """Those that have become free. Filled wherever the last reference to one ends, where nothing can be waited for."""

    @property
    def nbytes(self) -> int:
        """Of those that are free."""
        with self._lock:
            return self._gather()

    def take(self, nbytes: int) -> torch.Tensor:
        """Room for ``nbytes`` (uint8), of any content. It is free again once nothing refers to its memory any more."""
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        with self._lock:
            self._gather()
            room = min((room for room in self._free if room.numel() >= nbytes), key=torch.numel, default=None)
            self._free = [other for other in self._free if other is not room]
            left = self._left
        if room is None:
            room = _room(nbytes)
        memory = room.numpy()  # whatever is made of the room refers to this
        weakref.finalize(memory, left.put, room).atexit = False
        return torch.from_numpy(memory)[:nbytes]

    def prepare(self, nbytes: int) -> None:
        """Have so much free, and touched, soon: on a thread that comes after all others."""
        with self._lock:
            if self._wanted or self._gather() >= nbytes:
                self._wanted = max(self._wanted, nbytes) if self._wanted else 0
                return
            self._wanted = nbytes
            self._threads.thread(self._touch, "ftlib-rooms").start()

    def close(self) -> None:
        """Give back what is free, and what is in use once it is not any more."""
        with self._lock:
            self._free, self._left, self._wanted = [], queue.SimpleQueue(), 0

    def _gather(self) -> int:
        """Bytes that are free. With the lock held."""
        while not self._left.empty():
            self._free.append(self._left.get())
        return sum(map(torch.numel, self._free))

    def _touch(self) -> None:
        stand_back()
        while True:
            with self._lock:
                if self._gather() >= self._wanted:
                    self._wanted = 0
                    return
                left = self._left
            room = _room(SMALLEST)
            touch(room)
            left.put(room)  # nobody looks there after ``close``


def _room(nbytes: int) -> torch.Tensor:
    """Any stripe of the usual length fits in any of them."""
    return huge(-(-nbytes // SMALLEST) * SMALLEST)
