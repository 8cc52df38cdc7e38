"""What an agent process knows of its training process, from the kernel: whether it lives, and whether it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

__all__ = ["Lifeline"]

_FRESH = 0.002
"""Seconds for which one look at the state serves: far below any timeout, and a look costs some 10 us."""
_FLAGS, _PENDING = 6, 28
"""Fields of ``/proc/PID/task/TID/stat`` behind the name (proc(5) counts both the name and the number before it: 9 and 31)."""
_PF_EXITING = 0x4
_SIGKILL = 1 << 8


class Lifeline:
    """Watches one process, usually the parent. Where the kernel tells nothing it is never held, and its end is told by
    the pipe alone.
    """

    def __init__(self, pid: int) -> None:
        """``pid`` must still be the process that is meant."""
        self._pidfd = self._stat = self._proc = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # an old kernel, or a sandbox: the pipe tells, too
            pass
        with contextlib.suppress(OSError):
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._proc = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held = False
        self._looked = 0.0

    def held(self) -> bool:
        """Whether it is stopped (SIGSTOP, Ctrl-Z, a debugger): then it must look as silent as it is."""
        now = time.monotonic()
        if now - self._looked > _FRESH and self._stat >= 0:
            self._looked = now
            try:
                stat = os.pread(self._stat, 512, 0)
            except OSError:  # gone: ``ended`` will tell
                return self._held
            self._held = stat[stat.rindex(b")") + 2 :][:1] in b"Tt"
        return self._held

    def watch(self, ended: Callable[[], None]) -> None:
        """Call ``ended`` on the running loop once the process has ended."""
        if self._pidfd < 0:
            return
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.remove_reader(self._pidfd)
            ended()

        loop.add_reader(self._pidfd, gone)

    def ending(self) -> bool:
        """Whether the process as a whole is ending, so that none of its threads ever runs its program again.

        A thread has SIGKILL pending only when all were sent it, by whoever kills the process or makes it exit (or execute another
        program): the kernel never does that to one. Else every thread has to be on its way out, or gone. Threads come only from
        others that run; so once a list names nobody that was not seen ending before that list was read, nobody is left.

        ``/proc/PID`` was opened while the process lived: another one with its number is never looked at.
        """
        if self._proc < 0:
            return False
        seen: set[str] = set()
        while True:
            try:
                tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
            except (FileNotFoundError, ProcessLookupError):
                return True  # it was waited for: its number may be another's
            except OSError:
                return False
            try:
                new = set(os.listdir(tasks)) - seen
                for thread in new:
                    ending, killed = _look_at(thread, tasks)
                    if killed:
                        return True
                    if not ending:
                        return False
            except (FileNotFoundError, ProcessLookupError):
                return True
            finally:
                os.close(tasks)
            if not new:
                return True
            seen |= new

    def dumps_core(self) -> bool:
        """Whether the process is writing a core dump: its threads have been killed already, but end only after that."""
        try:
            status = os.open("status", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        except OSError:
            return False
        with os.fdopen(status, "rb") as file, contextlib.suppress(OSError):
            return b"\nCoreDumping:\t1" in file.read()
        return False


def _look_at(thread: str, tasks: int) -> tuple[bool, bool]:
    """Whether a thread is on its way out, and whether it has SIGKILL pending."""
    try:
        fd = os.open(f"{thread}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=tasks)
    except (FileNotFoundError, ProcessLookupError):
        return True, False
    try:
        stat = os.read(fd, 1024)
    except ProcessLookupError:
        return True, False
    finally:
        os.close(fd)
    fields = stat[stat.rindex(b")") + 2 :].split()
    return bool(int(fields[_FLAGS]) & _PF_EXITING), bool(int(fields[_PENDING]) & _SIGKILL)
