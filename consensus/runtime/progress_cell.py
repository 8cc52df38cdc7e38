"""A few numbers that the training thread writes at every call and the agent reads when it sends a ping.

Shared memory, since the agent may run in another process and a message for every step would wake it for nothing.
"""

from __future__ import annotations

import mmap
import os
import struct

from ..progress import NOWHERE, Progress

__all__ = ["ProgressCell"]

_CELL = struct.Struct("<QQQd?")


class ProgressCell:
    """One writer, one reader. A sequence number that is odd during a write tells the reader of a torn value."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """``memory``: what is shared with another process; None: nothing is."""
        self._memory = mmap.mmap(-1, _CELL.size) if memory is None else memory
        self._sequence = 0
        self._latest = NOWHERE

    @classmethod
    def shared(cls) -> tuple[ProgressCell, int]:
        """A cell, and the descriptor by which another process ``open``s it (to be closed once it has)."""
        fd = os.memfd_create("ftlib-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _CELL.size)
        return cls(mmap.mmap(fd, _CELL.size)), fd

    @classmethod
    def open(cls, fd: int) -> ProgressCell:
        """The cell that another process made; takes ``fd``."""
        try:
            return cls(mmap.mmap(fd, _CELL.size))
        finally:
            os.close(fd)

    def write(self, progress: Progress) -> None:
        """Replace the value."""
        memory, sequence = self._memory, self._sequence
        _CELL.pack_into(memory, 0, sequence + 1, 0, 0, 0.0, False)
        _CELL.pack_into(memory, 0, sequence + 1, progress.finished, progress.current, progress.since, progress.busy)
        self._sequence = sequence + 2
        memory[:8] = (sequence + 2).to_bytes(8, "little")

    def read(self) -> Progress:
        """The value, or the one before where it is just being written."""
        sequence, finished, current, since, busy = _CELL.unpack_from(self._memory)
        if sequence % 2 == 0 and self._memory[:8] == sequence.to_bytes(8, "little"):
            self._latest = Progress(finished, current, since, busy)
        return self._latest
