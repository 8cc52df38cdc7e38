"""Detects the end of a training process when it happens, not when its memory is freed.

The kernel ends a process in this order: its threads, its memory, its files. With gigabytes of memory, or a CUDA context,
freeing the memory takes from a tenth of a second to several; only then its sockets close. The kernel releases a robust mutex
with the thread that holds it, at the very beginning. So a thread of the training process holds one while that process lives,
and a thread of its agent's process waits for the mutex.

The holder is a thread that does nothing else, because it ends with the process and never before, whichever threads train, and
wherever they hang. (A thread that waits for a disk or a driver cannot be ended before that answers.)

The mutex only shows that a thread has ended; whether its process has, the kernel says (see ``ParentWatcher.ending``).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable

from ...logs import CarefulLogger
from ...wire.slices import short_slices
from .parent_watcher import ParentWatcher
from .robust_mutex import RobustMutex, Waited

_LOG = CarefulLogger()
_START_TIMEOUT = 1.0
"""Seconds for a thread to start and lock a mutex that no other thread knows."""
_SLICE = 1.0
"""Seconds between two checks for a core dump: the threads end, and release the mutex, only after the dump."""
_CONFIRM = 0.25
"""Seconds for the threads of a killed process to be seen ending: long, since each of them already has the signal."""
_LOOK = 0.0005


class LifeLock:
    """Held by a thread of this process from ``hold`` on, until ``release`` or the end of the process."""

    def __init__(self) -> None:
        """Holds nothing yet."""
        self._over = threading.Lock()
        self._over.acquire()
        self._held = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, name: str) -> int:
        """Start a thread ``name`` that holds the lock. Returns a descriptor for ``watch_life`` in another process; the caller
        closes it here.

        Returns -1 if the system has no robust mutexes: then only its sockets show the end of this process.
        """
        try:
            fd = os.memfd_create("ftlib-life", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            return -1
        try:
            os.ftruncate(fd, RobustMutex.SIZE)
            memory = mmap.mmap(fd, RobustMutex.SIZE)
            memory.madvise(mmap.MADV_DONTFORK)  # a forked child gets neither the lock nor the memory
            mutex = RobustMutex.create(memory)
        except (AttributeError, OSError) as error:
            _LOG.debug("no robust mutex (%s): the end of this process will be known by its sockets", error)
            os.close(fd)
            return -1
        self._thread = threading.Thread(target=self._keep, args=(mutex,), name=name, daemon=True)
        self._thread.start()
        self._held.wait(_START_TIMEOUT)  # on timeout the agent finds it unlocked, and relies on the sockets
        return fd

    def release(self) -> None:
        """End the agent's wait for this lock. Idempotent; without effect in a forked child."""
        with contextlib.suppress(RuntimeError):  # released before
            self._over.release()

    def _keep(self, mutex: RobustMutex) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # this thread handles none
        short_slices()
        mutex.lock()
        self._held.set()
        self._over.acquire()
        mutex.unlock()


def watch_life(fd: int, parent: ParentWatcher, ended: Callable[[], object]) -> None:
    """Start a thread that waits for the end of the process that holds the lock of ``fd``, and then calls ``ended``, once.

    Takes ``fd``. The thread ends with this process, or when the lock is released, or if it cannot wait for it.
    """
    try:
        mutex = RobustMutex(mmap.mmap(fd, RobustMutex.SIZE))
    except OSError:
        return
    finally:
        os.close(fd)
    threading.Thread(target=_watch, args=(mutex, parent, ended), name="ftlib-life", daemon=True).start()


def _watch(mutex: RobustMutex, parent: ParentWatcher, ended: Callable[[], object]) -> None:
    short_slices()
    try:
        while (waited := mutex.wait(_SLICE)) is Waited.TIMEOUT:
            if parent.dumps_core():
                ended()
                return
    except OSError as error:
        _LOG.debug("the training process's life lock cannot be waited for (%s): its sockets will tell of its end", error)
        return
    if waited is Waited.OWNER_ENDED and _confirmed(parent):
        ended()


def _confirmed(parent: ParentWatcher) -> bool:
    """Whether the whole process is ending, not only the holder's thread. The kernel shows a taken signal a moment later."""
    deadline = time.monotonic() + _CONFIRM
    while not parent.ending():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK)
    return True
