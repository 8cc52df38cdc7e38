"""Memory that both ends of a link share, where they run on one kernel: a ring of bytes for each direction.

No counter lies in that memory. How many bytes were written, and how many were taken, goes through two eventfds, one a reader:
the kernel orders what the two processes see, on every processor, and a peer that lies can only end the link. The low half of an
eventfd's value counts bytes that arrived for its reader, the high half those that the other side has taken of its own.

The memory is a memfd that can neither shrink nor grow: it has no name, and is gone with the last process that holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from .wire import WireError

SIZE = 4 << 20
"""Bytes of each direction."""
_STEP = 1 << 18
"""Bytes copied at a time: the reader takes the first ones while the writer copies the next."""
_REPORT = SIZE // 4
"""Bytes taken until the writer is told."""
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LOW = (1 << 32) - 1
DESCRIPTORS = 3
"""The memory, the eventfd of the end that made it, and the other's."""


def make() -> tuple[int, int, int]:
    """The descriptors of a new ring. Raises OSError if this system has none."""
    memory = os.memfd_create("ftlib-ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(memory, 2 * SIZE)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
        first = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            return memory, first, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            os.close(first)
            raise
    except OSError:
        os.close(memory)
        raise


class RingPath:
    """One end. Reading belongs to one thread at a time, and writing to one."""

    name = "ring"
    sealed = False
    quick = True

    def __init__(self, descriptors: Sequence[int], *, made: bool) -> None:
        """Takes over ``descriptors`` (see ``make``). ``made``: whether this end made them. OSError: they are no ring."""
        memory, *bells = descriptors
        try:
            _check(memory, bells)
            self._map = mmap.mmap(memory, 2 * SIZE)
        except BaseException:
            for fd in bells:
                os.close(fd)
            raise
        finally:
            os.close(memory)
        self._map.madvise(mmap.MADV_DONTFORK)
        whole = memoryview(self._map)
        halves = [whole[:SIZE], whole[SIZE:]]
        whole.release()
        self._bell, self._their_bell = bells if made else bells[::-1]
        self._out, self._in = halves if made else halves[::-1]
        self._lock = threading.Lock()
        self._room = SIZE
        self._written = 0
        self._here = 0
        """Bytes that can be read."""
        self._read = 0
        self._unreported = 0
        self._cut = False
        _RINGS.add(self)

    def fileno(self) -> int:
        """See ``Path``."""
        return self._bell

    def descriptors(self) -> tuple[int, int]:
        """Those that a forked child must not keep."""
        return self._bell, self._their_bell

    def cut(self) -> None:
        """The peer writes no more."""
        self._cut = True

    def refresh(self) -> bool:
        """See ``Path``."""
        try:
            news = os.eventfd_read(self._bell)
        except BlockingIOError:
            return False
        self._here += news & _LOW
        with self._lock:
            self._room += news >> 32
            if self._room > SIZE or self._here > SIZE:
                raise WireError("more bytes than a ring holds are announced")
        return news > _LOW

    def read(self, into: Sequence[memoryview]) -> int:
        """See ``Path``."""
        first = into[0]
        if not self._here and self._cut:
            self.refresh()  # what was written last was announced before the end, maybe in the middle of this reading
            if not self._here:
                raise EOFError
        if not self._here:
            return 0
        at = self._read % SIZE
        count = min(len(first), self._here, SIZE - at, _STEP)
        first[:count] = self._in[at : at + count]
        self._read += count
        self._here -= count
        self._unreported += count
        if self._unreported >= _REPORT:
            os.eventfd_write(self._their_bell, self._unreported << 32)
            self._unreported = 0
        return count

    def write(self, views: Sequence[memoryview]) -> int:
        """See ``Path``."""
        total = told = 0
        for view in views:
            begin = 0
            while begin < len(view):
                at = self._written % SIZE
                count = min(len(view) - begin, self._room, SIZE - at, _STEP)
                if not count:
                    break
                self._out[at : at + count] = view[begin : begin + count]
                begin += count
                total += count
                self._written += count
                with self._lock:
                    self._room -= count
                if total - told >= _STEP:
                    os.eventfd_write(self._their_bell, total - told)
                    told = total
            if begin < len(view):
                break
        if total > told:
            os.eventfd_write(self._their_bell, total - told)
        return total

    def silent(self) -> float:
        """Both ends are on this host."""
        return 0.0

    def unsent(self) -> bool:
        """The peer can read what was written even when this process has ended."""
        return False

    def close(self) -> None:
        """See ``Path``."""
        with contextlib.suppress(BufferError):
            self._out.release()
            self._in.release()
            self._map.close()
        bells = self.descriptors()
        self._bell = self._their_bell = -1
        for fd in bells:
            if fd >= 0:
                os.close(fd)


_RINGS: weakref.WeakSet[RingPath] = weakref.WeakSet()
_INHERITED: list[RingPath] = []
"""Those of the process that this one was forked from: their memory is not there, and what else is there now is not theirs to
unmap, so they are kept for ever.
"""


def _inherit() -> None:
    _INHERITED.extend(_RINGS)
    for ring in _INHERITED:
        ring._room = ring._here = 0  # noqa: SLF001 - nothing can be written or read, as the memory is not there


os.register_at_fork(after_in_child=_inherit)


def _check(memory: int, bells: Sequence[int]) -> None:
    """Raise OSError unless that is a ring: memory that the peer could still cut short would end this process."""
    if os.fstat(memory).st_size != 2 * SIZE or fcntl.fcntl(memory, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise OSError("what the peer passed on is no memory of a ring")
    for fd in bells:
        if Path(f"/proc/self/fd/{fd}").readlink() != Path("anon_inode:[eventfd]") or os.get_blocking(fd):
            raise OSError("what the peer passed on is no eventfd")
