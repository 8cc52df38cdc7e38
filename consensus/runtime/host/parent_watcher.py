"""What an agent process learns from the kernel about its training process: whether it lives, and whether it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

_FRESH = 0.002
"""Seconds for which one read of the state is valid: far below any timeout, and a read costs some 10 us."""
_FLAGS, _NICE, _PENDING = 6, 16, 28
"""Fields of ``/proc/PID/task/TID/stat`` behind the name (proc(5) counts the name and the number before it: 9, 19 and 31)."""
_ENOUGH = 8192
"""Bytes of such a file."""
_STEP_BACK = 15
"""Added to the niceness of ending threads: other threads that want the processor get nearly all of it."""
_PF_EXITING = 0x4
_SIGKILL = 1 << 8


@dataclass(frozen=True, slots=True)
class _Thread:
    """What the kernel says about one thread; the defaults are those of a thread that is gone."""

    exiting: bool = True
    killed: bool = False
    """SIGKILL is pending."""
    nice: int = 0


class ParentWatcher:
    """Watches one process, usually the parent. If the kernel says nothing, the process never counts as held, and only the pipe
    shows its end.
    """

    def __init__(self, pid: int) -> None:
        """``pid`` must still belong to the intended process."""
        self._pid = pid
        self._pidfd = self._stat = self._proc = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # an old kernel, or a sandbox: the pipe shows the end, too
            pass
        with contextlib.suppress(OSError):
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._proc = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._held = False
        self._looked = 0.0

    def held(self) -> bool:
        """Whether the process is stopped (SIGSTOP, Ctrl-Z, a debugger): then its agent must be silent, too."""
        now = time.monotonic()
        if now - self._looked > _FRESH and self._stat >= 0:
            self._looked = now
            try:
                stat = os.pread(self._stat, 512, 0)
            except OSError:  # gone: ``watch`` will report that
                return self._held
            self._held = stat[stat.rindex(b")") + 2 :][:1] in b"Tt"
        return self._held

    def signal(self, number: int) -> None:
        """Send a signal to the process; nothing if it has ended. Never reaches a later process with its number, if the kernel
        has pidfds.
        """
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self._pid, number)

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

        A thread has SIGKILL pending only if all threads were sent it, because the process is killed, exits or executes another
        program: the kernel never sends it to one alone. Otherwise every thread has to be exiting, or gone. Only running threads
        start others; so once a list names no thread that was not seen exiting before the list was read, none is left.

        ``/proc/PID`` was opened while the process lived: a later process with its number is never looked at.
        """
        if self._proc < 0:
            return False
        seen: set[str] = set()
        try:
            while new := set(self._tasks()) - seen:
                for thread in new:
                    found = self._look_at(thread)
                    if found.killed:
                        return True
                    if not found.exiting:
                        return False
                seen |= new
        except (FileNotFoundError, ProcessLookupError):  # its parent has waited for it
            return True
        except OSError:
            return False
        return True

    def step_back(self) -> None:
        """Lower the priority of an ending process's threads: it only has memory to free, while others have work to do.

        Freeing gigabytes takes more processor time than the others' whole recovery, at the same moment. If the kernel shares
        the processors among sessions (sched(7), autogroup), and the process leads one, its whole session steps back.
        """
        if self._proc < 0:
            return
        with contextlib.suppress(OSError):
            threads = [(thread, self._look_at(thread)) for thread in self._tasks()]
            ending = [(thread, found) for thread, found in threads if found.exiting or found.killed]
            for thread, found in ending:  # and not a thread that executes another program
                os.setpriority(os.PRIO_PROCESS, int(thread), min(19, found.nice + _STEP_BACK))
            if ending and os.getsid(self._pid) == self._pid:
                self._write("autogroup", str(_STEP_BACK))

    def dumps_core(self) -> bool:
        """Whether the process is writing a core dump: its threads have been killed already, but end only after that."""
        try:
            return self._proc >= 0 and b"\nCoreDumping:\t1" in self._read("status")
        except OSError:
            return False

    def _tasks(self) -> list[str]:
        """Ids of its threads. Raises FileNotFoundError or ProcessLookupError once its parent has waited for it."""
        tasks = os.open("task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.listdir(tasks)  # noqa: PTH208 - of a descriptor
        finally:
            os.close(tasks)

    def _look_at(self, thread: str) -> _Thread:
        try:
            stat = self._read(f"task/{thread}/stat")
        except (FileNotFoundError, ProcessLookupError):
            return _Thread()
        fields = stat[stat.rindex(b")") + 2 :].split()
        exiting, killed = int(fields[_FLAGS]) & _PF_EXITING, int(fields[_PENDING]) & _SIGKILL
        return _Thread(bool(exiting), bool(killed), int(fields[_NICE]))

    def _write(self, name: str, text: str) -> None:
        fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)

    def _read(self, name: str) -> bytes:
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.read(fd, _ENOUGH)
        finally:
            os.close(fd)
