"""What every part that starts processes needs: they have names, die with their parent, and their ends are told in words."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends. Runs between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(128 + signal.SIGKILL)


def call_process(name: str) -> None:
    """What ``ps`` and ``top`` show of this process: at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def describe_exit(code: int) -> str:
    """A ``subprocess`` return code in words."""
    if code == 0:
        return "finished"
    if code > 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
