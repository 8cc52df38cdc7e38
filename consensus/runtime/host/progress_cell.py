"""A few numbers that the training thread writes at every call and the agent reads when it sends a ping.

It is shared memory, since the agent may run in another process, and a message for every step would wake it for nothing.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import replace

from ...progress import NOWHERE, Progress

_PLACE = struct.Struct("<QQd?Q")
_SEQUENCE = 8
"""Bytes of the sequence number, which comes first."""
_LEAVING = _SEQUENCE + _PLACE.size
"""The position of the last byte, ``leaving``. It is outside the sequence: a reader must not miss it during another write."""
_SIZE = _LEAVING + 1


class ProgressCell:
    """One writer, one reader. A sequence number that is odd during a write shows the reader a torn value.

    It is written by itself, before the value and after it: ``pack_into`` clears all of its place before it fills it, so that a
    number among the fields would be 0, and even, in the middle of a write.
    """

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        """``memory``: shared with another process; None: private memory."""
        self._memory = mmap.mmap(-1, _SIZE) if memory is None else memory
        self._sequence = 0
        self._latest = NOWHERE
        self._read = bytes(_SEQUENCE)
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
        memory[:_SEQUENCE] = (sequence + 1).to_bytes(_SEQUENCE, "little")
        _PLACE.pack_into(memory, _SEQUENCE, *place)
        self._sequence = sequence + 2
        memory[:_SEQUENCE] = (sequence + 2).to_bytes(_SEQUENCE, "little")

    def commit_to_leave(self) -> None:
        """``leaving`` is True from now on for every read after this call has returned."""
        self._memory[_LEAVING] = 1

    def read(self) -> Progress:
        """The value, or the previous one during a write; ``leaving`` is always current."""
        memory, latest = self._memory, self._latest
        sequence, leaving = memory[:_SEQUENCE], memory[_LEAVING] == 1
        if sequence == self._read and leaving == latest.leaving:
            return latest  # the usual case: the agent reads several times in a call
        finished, current, since, busy, inner = _PLACE.unpack_from(memory, _SEQUENCE)
        if sequence[0] % 2 == 0 and memory[:_SEQUENCE] == sequence:
            self._latest, self._read = Progress(finished, current, since, busy, leaving, inner), sequence
        elif leaving and not latest.leaving:
            self._latest = replace(latest, leaving=True)
        return self._latest
