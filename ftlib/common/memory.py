"""Memory in huge pages, where the system has them: the first touch of many small ones costs several times a copy into them."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import torch

_HUGE = 2 << 20
"""Bytes of a huge page."""
_PIECE = 1 << 20
"""Bytes that are touched in one go."""


def room(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A row of ``count`` elements on the CPU, not initialized; in huge pages where it fills some."""
    if count * dtype.itemsize < _HUGE:
        return torch.empty(count, dtype=dtype, device="cpu")
    return huge(count * dtype.itemsize).view(dtype)


def huge(nbytes: int) -> torch.Tensor:
    """Room for ``nbytes``, zero (uint8), in huge pages where the system has them; given back with the tensor.

    The first touch of so many small pages would cost several times what the copy into them does.
    """
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8)
    room = mmap.mmap(-1, nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a system without: small pages do
            room.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(room, dtype=torch.uint8)  # holds the mapping
    skip = -whole.data_ptr() % _HUGE  # only whole, aligned huge pages are given; what is never touched costs nothing
    return whole[skip : skip + nbytes]


def touch(memory: torch.Tensor) -> None:
    """Fill ``memory`` (one row, on the CPU) with zeros. On this thread alone, and others may run Python meanwhile."""
    for piece in torch.split(memory.view(torch.uint8), _PIECE):
        np.copyto(piece.numpy(), 0)
