"""What every part that starts processes needs: they have names, die with their parent, and their ends are told in words."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

TWIN = 0.5
"""Seconds within which a second signal counts as the first one sent twice."""

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


def rename_process(name: str) -> None:
    """What ``ps``, ``top`` and ``pkill``, with ``-f`` too, know this process by: ``name`` in the place of its command line."""
    call_process(name)
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()  # the name before it may hold anything
    begin, end = int(fields[45]), int(fields[46])  # of the command line in this process's memory: arg_start, arg_end
    if begin:
        ctypes.memmove(begin, name.encode()[: end - begin - 1].ljust(end - begin, b"\0"), end - begin)


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
