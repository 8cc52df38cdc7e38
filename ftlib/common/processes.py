"""What every part that starts processes needs: when one may fork, where this one is, their names, that they die with their
parent, their ends in words.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError

TWIN = 0.5
"""Seconds within which a second signal counts as the first one sent twice."""

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED."""
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


def settle_autograd() -> None:
    """To be called in a process that was forked from one with torch, before it starts threads.

    There the first operation that gradients may flow through makes torch's autograd engine anew, without a lock and without the
    GIL: of two threads that come at once, one frees what the other uses, and the process ends by SIGSEGV (torch 2.13,
    ``get_python_engine`` in torch/csrc/autograd/python_engine.cpp). That operation is done here. Nothing without torch.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        with torch.enable_grad():
            torch.ones(1, device="cpu", requires_grad=True).exp()


def working_directory() -> Path:
    """Where this process is. ConfigError where that directory was removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working directory was removed: go to one that is there") from None


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


def opened_cuda(maps: Path = Path("/proc/self/maps"), load: Callable[[str], Any] = ctypes.CDLL) -> bool:
    """Whether anything here has begun to use CUDA's driver: then no process that is forked from now on can.

    The driver is asked itself. Torch does not know of all that opens it: a backward pass on the CPU does so, too.
    """
    library = next((line.split()[-1] for line in maps.read_text().splitlines() if "/libcuda.so" in line), "")
    if not library:
        return False
    return int(load(library).cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))) != _NOT_INITIALIZED
