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


class Lifeline:
    """Watches one process, usually the parent. Where the kernel tells nothing it is never held, and its end is told by
    the pipe alone.
    """

    def __init__(self, pid: int) -> None:
        """``pid`` must still be the process that is meant."""
        self._pidfd = self._stat = -1
        try:
            self._pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # an old kernel, or a sandbox: the pipe tells, too
            pass
        with contextlib.suppress(OSError):
            self._stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
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
