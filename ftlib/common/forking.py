"""Whether processes that are forked from this one could use a GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["opened_cuda"]

_NOT_INITIALIZED = 3
"""CUDA_ERROR_NOT_INITIALIZED."""


def opened_cuda(maps: Path = Path("/proc/self/maps"), load: Callable[[str], Any] = ctypes.CDLL) -> bool:
    """Whether anything here has begun to use CUDA's driver: then no process that is forked from now on can.

    The driver is asked itself. Torch does not know of all that opens it: a backward pass on the CPU does so, too.
    """
    library = next((line.split()[-1] for line in maps.read_text().splitlines() if "/libcuda.so" in line), "")
    if not library:
        return False
    return int(load(library).cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p()))) != _NOT_INITIALIZED
