"""A mutex in memory that two processes share, whose waiter is told when its owner's thread has ended without unlocking it.

Linux keeps for each thread a list of the robust mutexes that it holds, and goes through it when the thread ends, whichever way
it ends: before any of the process's memory is freed or any file closed (``pthread_mutexattr_setrobust(3)``,
Documentation/locking/robust-futexes.rst). The C library is called with ``ctypes``, which lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from enum import Enum

_SHARED = 1
_ROBUST = 1
"""``PTHREAD_PROCESS_SHARED`` and ``PTHREAD_MUTEX_ROBUST``, the same in glibc and musl."""
_ATTRIBUTES = 64
"""Bytes for a ``pthread_mutexattr_t``: 4 or 8 in every C library so far."""


class _Time(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Waited(Enum):
    """What came of waiting for the owner."""

    TIMEOUT = "still owned"
    UNLOCKED = "unlocked, or never locked"
    OWNER_ENDED = "the thread that owned it has ended"


class RobustMutex:
    """One mutex at the start of ``memory``. Whoever locks it unlocks it, on the same thread."""

    SIZE = mmap.PAGESIZE
    """Bytes of memory: a ``pthread_mutex_t`` takes 40 to 48, and the rest of the page nobody else could use."""

    def __init__(self, memory: mmap.mmap) -> None:
        """``memory`` is shared, and holds a mutex already: see ``create``. OSError where the C library has none of this."""
        try:
            library = ctypes.CDLL(None)
            self._lock, self._unlock = library.pthread_mutex_lock, library.pthread_mutex_unlock
            self._timed_lock = library.pthread_mutex_timedlock
        except AttributeError as error:
            raise OSError(errno.ENOSYS, str(error)) from None
        self._library = library
        self._memory = memory
        self._mutex = ctypes.byref(ctypes.c_char.from_buffer(memory))

    @classmethod
    def create(cls, memory: mmap.mmap) -> RobustMutex:
        """Make one where nobody uses ``memory`` yet. OSError where the kernel or the C library has no robust mutexes."""
        made = cls(memory)
        attributes = ctypes.create_string_buffer(_ATTRIBUTES)
        try:
            library = made._library
            _checked(library.pthread_mutexattr_init(attributes))
            _checked(library.pthread_mutexattr_setpshared(attributes, _SHARED))
            _checked(library.pthread_mutexattr_setrobust(attributes, _ROBUST))
            _checked(library.pthread_mutex_init(made._mutex, attributes))
        except AttributeError as error:
            raise OSError(errno.ENOSYS, str(error)) from None
        return made

    def lock(self) -> None:
        """Own it. OSError where another thread did, and has ended."""
        _checked(self._lock(self._mutex))

    def unlock(self) -> None:
        """Let go of it."""
        _checked(self._unlock(self._mutex))

    def wait(self, seconds: float) -> Waited:
        """Wait so long for the owner to unlock it, or to end; another thread may own it next. OSError where that cannot be.

        The C library measures by the wall clock: where that jumps a TIMEOUT comes sooner or later, but never the other answers.
        """
        until = time.time() + seconds
        code = self._timed_lock(self._mutex, ctypes.byref(_Time(int(until), int(until % 1.0 * 1e9))))
        if code == errno.ETIMEDOUT:
            return Waited.TIMEOUT
        if code == errno.EOWNERDEAD:
            self.unlock()  # nobody declares it consistent: whoever waits later is told that it cannot be recovered
            return Waited.OWNER_ENDED
        _checked(code)
        self.unlock()
        return Waited.UNLOCKED


def _checked(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
