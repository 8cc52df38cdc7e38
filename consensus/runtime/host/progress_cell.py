"""A few numbers that the training thread writes at every call and the agent reads when it sends a ping.

It is shared memory, since the agent may run in another process, and a message for every step would wake it for nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import replace

from ...progress import NOWHERE, Progress

_CELL = struct.Struct("<QQQd?Q")
_LEAVING = _CELL.size
"""The position of the last byte, ``leaving``. It is outside the sequence: a reader must not miss it during another write."""
_SIZE = _LEAVING + 1


class ProgressCell:
    """One writer, one reader. A sequence number that is odd during a write shows the reader a torn value."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """``memory``: shared with another process; None: private memory."""
        self._memory = mmap.mmap(-1, _SIZE) if memory is None else memory
        self._sequence = 0
        self._latest = NOWHERE
        self._read = 0
        """The sequence number of ``_latest``."""

    @classmethod
    def shared(cls) -> tuple[ProgressCell, int]:
        """A cell, and the descriptor by which another process ``open``s it (to be closed once it has)."""
        fd = os.memfd_create("ftlib-progress", os.MFD_CLOEXEC)
        os.ftruncate(fd, _SIZE)
        return cls(mmap.mmap(fd, _SIZE)), fd

    @classmethod
    def open(cls, fd: int) -> ProgressCell:
        """The cell that another process made; takes ``fd``."""
        try:
            return cls(mmap.mmap(fd, _SIZE))
        finally:
            os.close(fd)

    def write(self, progress: Progress) -> None:
        """Replace the value, except ``leaving``."""
        memory, sequence = self._memory, self._sequence
        place = progress.finished, progress.current, progress.since, progress.busy, progress.inner
        _CELL.pack_into(memory, 0, sequence + 1, 0, 0, 0.0, False, 0)
        _CELL.pack_into(memory, 0, sequence + 1, *place)
        self._sequence = sequence + 2
        memory[:8] = (sequence + 2).to_bytes(8, "little")

    def commit_to_leave(self) -> None:
        """``leaving`` is True from now on for every read after this call has returned."""
        self._memory[_LEAVING] = 1

    def read(self) -> Progress:
        """The value, or the previous one during a write; ``leaving`` is always current."""
        sequence, finished, current, since, busy, inner = _CELL.unpack_from(self._memory)
        leaving = self._memory[_LEAVING] == 1
        if sequence == self._read and leaving == self._latest.leaving:
            return self._latest  # the usual case: the agent reads several times in a call
        if sequence % 2 == 0 and self._memory[:8] == sequence.to_bytes(8, "little"):
            self._latest, self._read = Progress(finished, current, since, busy, leaving, inner), sequence
        elif leaving and not self._latest.leaving:
            self._latest = replace(self._latest, leaving=True)
        return self._latest
