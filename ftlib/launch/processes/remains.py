"""What is left of a worker once it was reaped: processes of its group that were killed with it, and have not ended yet.

They hold the port at which the worker was met until they have, which takes a second on busy processors. Whoever takes its place
needs that port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable


class Remains:
    """The processes of one group, watched until all of them have ended. Use on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, group: int, over: Callable[[], None], patience: float) -> None:
        """``over``: called once, when all have ended (now, if none is there), or after ``patience`` seconds.

        ``group``: sent SIGKILL before, so that it starts no others.
        """
        self._loop = loop
        self._over = over
        self._left = {handle for pid in _members(group) if (handle := _open(pid)) is not None}
        """A pidfd each: readable once the process has ended, whoever reaps it."""
        if not self._left:
            over()
            return
        self._timer = loop.call_later(patience, self._give_up)
        for handle in self._left:
            loop.add_reader(handle, self._ended, handle)

    def _ended(self, handle: int) -> None:
        self._forget(handle)
        if not self._left:
            self._timer.cancel()
            self._over()

    def _give_up(self) -> None:
        """They are stuck in the kernel: do without what they hold."""
        for handle in list(self._left):
            self._forget(handle)
        self._over()

    def _forget(self, handle: int) -> None:
        self._loop.remove_reader(handle)
        self._left.discard(handle)
        os.close(handle)


def _members(group: int) -> list[int]:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    found: list[int] = []
    try:
        entries = os.listdir("/proc")  # noqa: PTH208 - names only; a Path each would cost more than the pass
    except OSError:  # no descriptor is left: an end must be told all the same
        return found
    for entry in entries:
        with contextlib.suppress(OSError):
            if entry.isdigit() and os.getpgid(int(entry)) == group:
                found.append(int(entry))
    return found


def _open(pid: int) -> int | None:
    """None if it has ended since, or the kernel is too old for pidfds (before 5.3)."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
