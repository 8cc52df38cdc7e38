"""Linux facts about processes: dying with one's parent, adopting orphans, finding and killing every descendant.

Why: a launcher that is itself killed must leave nothing behind. A worker dies with its parent (``die_with_parent``),
but its own children (data loaders) do not. So the launcher's processes are *subreapers*: every orphaned descendant becomes
their child, even in a session of its own, and can be found and killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from enum import Enum
from pathlib import Path

from ...errors import ConfigError

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Fate(Enum):
    """What became of an accused process."""

    REAPED = "reaped"
    """Killed now."""
    GONE = "gone"
    """Ended before, or its number belongs to a later lifetime."""
    UNKNOWN = "unknown"
    """Never a worker of this launcher."""
    STUCK = "stuck"
    """Killed, but the kernel has not let go of it."""
    SPARED = "spared"
    """Not killed: with it the job's state would be gone."""


def require_linux() -> None:
    """Raise ConfigError if the kernel cannot keep the launcher's promises."""
    if not Path("/proc/self/stat").exists():
        raise ConfigError("ftlib run needs Linux with /proc; elsewhere start the workers yourself with FTLIB_* variables")


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant of this process."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def descendants(root: int) -> set[int]:
    """All living or unreaped processes below ``root``, from one pass over /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only; a Path each would cost more than the pass
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_bytes()
                parent = int(stat[stat.rindex(b")") + 2 :].split()[1])  # the name before it may hold anything
                children.setdefault(parent, []).append(int(entry))
    found: set[int] = set()
    fresh = [root]
    while fresh:
        fresh = [child for parent in fresh for child in children.get(parent, ()) if child not in found]
        found.update(fresh)
    return found


def kill_descendants(timeout: float) -> set[int]:
    """SIGKILL and reap all descendants of this process; returns those that are still there after ``timeout`` seconds.

    Repeats, because a process may fork between being listed and being killed. Call it only if nothing else in this process
    reaps.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return set()  # who adopts orphans and has no child has no descendant: /proc need not be read
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.002)  # orphans arrive here as their parents die; there is no event that covers all of them


def shell_code(code: int) -> int:
    """A ``subprocess`` return code as a shell reports it: 128 + signal."""
    return code if code >= 0 else 128 - code
