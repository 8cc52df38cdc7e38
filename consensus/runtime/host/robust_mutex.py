"""A mutex in memory that two processes share; its waiter learns if the owner's thread ended without unlocking it.

Linux keeps for each thread a list of the robust mutexes that it holds, and goes through it when the thread ends, in any way:
before it frees any of the process's memory or closes any file (``pthread_mutexattr_setrobust(3)``,
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
    """The result of waiting for the owner."""

    TIMEOUT = "still owned"
    UNLOCKED = "unlocked, or never locked"
    OWNER_ENDED = "the thread that owned it has ended"


class RobustMutex:
    """One mutex at the start of ``memory``. The thread that locks it must unlock it."""

    SIZE = mmap.PAGESIZE
    """Bytes of memory: a ``pthread_mutex_t`` takes 40 to 48, but memory is mapped in whole pages."""

    def __init__(self, memory: mmap.mmap) -> None:
        """``memory`` is shared, and holds a mutex already: see ``create``. Raises OSError if the C library has no mutexes."""
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
        """Make a mutex in unused ``memory``. Raises OSError if the kernel or the C library has no robust mutexes."""
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
        """Lock it. Raises OSError if a thread that owned it has ended."""
        _checked(self._lock(self._mutex))

    def unlock(self) -> None:
        """Unlock it."""
        _checked(self._unlock(self._mutex))

    def wait(self, seconds: float) -> Waited:
        """Wait so long for the owner to unlock it, or to end; another thread may own it next. Raises OSError if it cannot wait.

        The C library uses the wall clock: if that jumps, a TIMEOUT comes early or late; the other results are not affected.
        """
        until = time.time() + seconds
        code = self._timed_lock(self._mutex, ctypes.byref(_Time(int(until), int(until % 1.0 * 1e9))))
        if code == errno.ETIMEDOUT:
            return Waited.TIMEOUT
        if code == errno.EOWNERDEAD:
            self.unlock()  # not declared consistent: later waiters get "not recoverable"
            return Waited.OWNER_ENDED
        _checked(code)
        self.unlock()
        return Waited.UNLOCKED


def _checked(code: int) -> None:
    if code:
        raise OSError(code, os.strerror(code))
