"""A few numbers that the training thread writes at every call and the agent reads when it sends a ping.

Shared memory, since the agent may run in another process and a message for every step would wake it for nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import replace

from ...progress import NOWHERE, Progress

_CELL = struct.Struct("<QQQd?")
_LEAVING = _CELL.size
"""Where the last byte is. It has no part in the sequence, as a reader must not miss it while another value is written."""
_SIZE = _LEAVING + 1


class ProgressCell:
    """One writer, one reader. A sequence number that is odd during a write tells the reader of a torn value."""

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """``memory``: what is shared with another process; None: nothing is."""
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
        """Replace the value, but for ``leaving``."""
        memory, sequence = self._memory, self._sequence
        _CELL.pack_into(memory, 0, sequence + 1, 0, 0, 0.0, False)
        _CELL.pack_into(memory, 0, sequence + 1, progress.finished, progress.current, progress.since, progress.busy)
        self._sequence = sequence + 2
        memory[:8] = (sequence + 2).to_bytes(8, "little")

    def commit_to_leave(self) -> None:
        """``leaving`` is True from now on, for whoever reads after this call has returned."""
        self._memory[_LEAVING] = 1

    def read(self) -> Progress:
        """The value, or the one before where it is just being written; ``leaving`` is never that of before."""
        sequence, finished, current, since, busy = _CELL.unpack_from(self._memory)
        leaving = self._memory[_LEAVING] == 1
        if sequence == self._read and leaving == self._latest.leaving:
            return self._latest  # the usual case: a call takes longer than most of what the agent does
        if sequence % 2 == 0 and self._memory[:8] == sequence.to_bytes(8, "little"):
            self._latest, self._read = Progress(finished, current, since, busy, leaving), sequence
        elif leaving and not self._latest.leaving:
            self._latest = replace(self._latest, leaving=True)
        return self._latest
