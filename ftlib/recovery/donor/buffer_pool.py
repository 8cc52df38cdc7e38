"""Memory for a donor's copies: touched before it is needed, and reused for later copies.

The first touch of memory costs several times as much as the copy into it, and far more in a virtual machine that returns unused
memory to its host. An optimizer's step would wait for that.
"""

from __future__ import annotations

import queue
import weakref
from contextlib import suppress

import torch

from ...common.memory import room, touch
from ...common.threads import SYSTEM, Threads, stand_back
from ...core.tensors.staging import Allocate
from ..layout.shards import SMALLEST


class BufferPool:
    """The buffers of one member. Thread-safe."""

    def __init__(self, threads: Threads = SYSTEM, allocate: Allocate = room) -> None:
        """Empty at first. ``allocate``: see ``Framework``; of use where operations work on the buffers."""
        self._allocate = allocate
        self._threads = threads
        self._lock = threads.lock()
        # Guarded by the lock:
        self._free: list[torch.Tensor] = []
        self._wanted = 0
        """Free bytes that a thread is preparing; 0 while no thread prepares any."""
        self._left: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
        """Buffers whose last reference ended. A queue, as finalizers run anywhere and must not wait for the lock."""

    @property
    def nbytes(self) -> int:
        """Bytes of the free buffers."""
        with self._lock:
            return self._gather()

    def take(self, nbytes: int) -> torch.Tensor:
        """A buffer of ``nbytes`` (uint8) with any content. It returns to the pool once nothing refers to its memory."""
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        with self._lock:
            self._gather()
            buffer = min((buffer for buffer in self._free if buffer.numel() >= nbytes), key=torch.numel, default=None)
            self._free = [other for other in self._free if other is not buffer]
            left = self._left
        if buffer is None:
            buffer = self._new(nbytes)
        memory = buffer.numpy()  # every view of the buffer refers to this
        weakref.finalize(memory, left.put, buffer).atexit = False
        return torch.from_numpy(memory)[:nbytes]

    def prepare(self, nbytes: int) -> None:
        """Start a thread of low priority that makes ``nbytes`` free and touched, if there is memory for that."""
        with self._lock:
            if self._wanted or self._gather() >= nbytes:
                self._wanted = max(self._wanted, nbytes) if self._wanted else 0
                return
            with suppress(RuntimeError):  # no thread for it now: the copies touch their memory themselves
                self._threads.thread(self._touch, "ftlib-buffers").start()
                self._wanted = nbytes

    def close(self) -> None:
        """Free the memory: unused buffers now, others once they are not used any more."""
        with self._lock:
            self._free, self._left, self._wanted = [], queue.SimpleQueue(), 0

    def _gather(self) -> int:
        """Collect returned buffers; the free bytes. With the lock held."""
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
            try:
                buffer = self._new(SMALLEST)
                touch(buffer)
            except Exception:  # noqa: BLE001 - no memory: whoever needs it says so, and the next request tries again
                with self._lock:
                    self._wanted = 0
                return
            left.put(buffer)  # after ``close`` nobody reads this queue

    def _new(self, nbytes: int) -> torch.Tensor:
        """A buffer of a whole multiple of the smallest shard, so that usual shards fit in any buffer."""
        return self._allocate(-(-nbytes // SMALLEST) * SMALLEST, torch.uint8)
