"""The end of a training process, known when it happens and not when its memory is freed.

The kernel ends a process in this order: its threads, its memory, its files. With gigabytes of memory, or a CUDA context, the
second takes from a tenth of a second to several; only then its sockets close. A robust mutex is given up with the thread that
holds it, at the very beginning. So a thread of the training process holds one for as long as that lives, and a thread of
its agent's process waits for it.

Why a thread that does nothing else: it ends with the process and never before, whichever threads train, and whatever they
are stuck in. (A thread that waits for a disk or a driver cannot be ended before that answers.)

The mutex only says that a thread has ended. Whether its process has, the kernel is asked (see ``ParentWatcher.ending``).
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable

from ...wire.slices import short_slices
from .parent_watcher import ParentWatcher
from .robust_mutex import RobustMutex, Waited

_LOG = logging.getLogger("ftlib.consensus")
_START_TIMEOUT = 1.0
"""Seconds for a thread to start and lock a mutex that nobody else has seen."""
_SLICE = 1.0
"""Seconds between two looks whether the process writes a core dump: its threads end, and the mutex with them, after that."""
_CONFIRM = 0.25
"""Seconds for the threads of a process that was killed to be seen ending: long for a signal that each of them has got."""
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
        """Have a thread called ``name`` hold it; a descriptor for ``watch_life`` in another process, to be closed here.

        -1 where the system has no robust mutexes: then the others learn of this process's end by its sockets.
        """
        try:
            fd = os.memfd_create("ftlib-life", os.MFD_CLOEXEC)
        except (AttributeError, OSError):
            return -1
        try:
            os.ftruncate(fd, RobustMutex.SIZE)
            memory = mmap.mmap(fd, RobustMutex.SIZE)
            memory.madvise(mmap.MADV_DONTFORK)  # a forked child has nothing of it: neither the lock nor the memory
            mutex = RobustMutex.create(memory)
        except (AttributeError, OSError) as error:
            _LOG.debug("no robust mutex (%s): the end of this process will be known by its sockets", error)
            os.close(fd)
            return -1
        self._thread = threading.Thread(target=self._keep, args=(mutex,), name=name, daemon=True)
        self._thread.start()
        self._held.wait(_START_TIMEOUT)  # not yet: the agent then finds it unlocked, and goes by the sockets
        return fd

    def release(self) -> None:
        """The agent shall not wait for it any more. Idempotent; without effect in a forked child."""
        with contextlib.suppress(RuntimeError):  # released before
            self._over.release()

    def _keep(self, mutex: RobustMutex) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # none is to be handled on this thread
        short_slices()
        mutex.lock()
        self._held.set()
        self._over.acquire()
        mutex.unlock()


def watch_life(fd: int, parent: ParentWatcher, ended: Callable[[], object]) -> None:
    """Wait, on a thread of its own, for the process that holds the lock of ``fd`` to end, and call ``ended`` there, once.

    Takes ``fd``. The thread ends with this process, or when the lock was released, or says nothing.
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
    """Whether not just the thread that held the lock is ending. A signal that a thread has taken shows a moment later."""
    deadline = time.monotonic() + _CONFIRM
    while not parent.ending():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK)
    return True
