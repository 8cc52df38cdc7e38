"""Memory in huge pages, where the system has them.

The first touch of many small pages costs several times as much as a copy into them.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import torch

_HUGE = 2 << 20
"""Bytes of a huge page."""
_PIECE = 1 << 20
"""Bytes that are touched in one go."""


def room(count: int, dtype: torch.dtype) -> torch.Tensor:
    """A row of ``count`` uninitialized elements on the CPU; in huge pages if it fills at least one."""
    if count * dtype.itemsize < _HUGE:
        return torch.empty(count, dtype=dtype, device="cpu")
    return huge(count * dtype.itemsize).view(dtype)


def huge(nbytes: int) -> torch.Tensor:
    """``nbytes`` zeros (uint8), in huge pages where the system has them; the memory is freed with the tensor."""
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    room = mmap.mmap(-1, nbytes + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # without huge pages, small ones do
            room.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(room, dtype=torch.uint8)  # holds the mapping
    skip = -whole.data_ptr() % _HUGE  # only whole, aligned pages become huge; untouched memory costs nothing
    return whole[skip : skip + nbytes]


class Pages:
    """Memory in huge pages that is used again when it is freed: fresh pages cost more than a copy into them. Any thread."""

    def __init__(self, *, least: int = _HUGE, kept: int = 256 << 20) -> None:
        """``least``: bytes of the smallest row that is used again; ``kept``: bytes at most that are kept for later use."""
        self._least = least
        self._most = kept
        self._free: deque[memoryview] = deque()

    def row(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``room``."""
        nbytes = count * dtype.itemsize
        if nbytes < self._least:
            return torch.empty(count, dtype=dtype, device="cpu")
        memory = self._found(nbytes)
        lent = memoryview(memory)
        weakref.finalize(lent, self._give_back, memory)
        return torch.frombuffer(lent, dtype=torch.uint8).view(dtype)

    def _found(self, nbytes: int) -> memoryview:
        for _ in range(len(self._free)):
            try:
                memory = self._free.popleft()
            except IndexError:  # another thread was quicker
                break
            if memory.nbytes == nbytes:
                return memory
            self._free.append(memory)
        return memoryview(room(nbytes, torch.uint8).numpy().data)

    def _give_back(self, memory: memoryview) -> None:
        if sum(each.nbytes for each in list(self._free)) + memory.nbytes <= self._most:
            self._free.append(memory)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous ``tensor`` as a row of uint8; RuntimeError if it is not contiguous.

    A single element is contiguous whatever its strides, which ``view`` keeps: then torch has no view of its bytes.
    """
    return tensor.view(-1).as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def touch(memory: torch.Tensor) -> None:
    """Fill ``memory`` (one row, on the CPU) with zeros. Uses this thread only; other threads may run Python meanwhile."""
    for piece in torch.split(memory.view(torch.uint8), _PIECE):
        np.copyto(piece.numpy(), 0)
