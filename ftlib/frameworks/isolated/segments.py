"""Memory that the training process shares with the children that have its groups: anonymous files (memfd), which have no name
that could be left behind, and outlive every child.

Tensors are cut from large segments, one after another. A segment goes when the last of its tensors does. Small tensors have
other segments than large ones: each that stays keeps a whole segment.
"""

from __future__ import annotations

import bisect
import itertools
import mmap
import os
import threading
import weakref
from dataclasses import dataclass

import torch

_LEAST = 64 << 20
"""Bytes of a segment at least; what is never touched costs nothing."""
_ALIGNED = 4096
_SMALL = 1 << 20
"""Bytes of a small tensor at most."""
_KEPT = 256 << 20
"""Bytes of spare buffers that are kept."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One file, mapped here at ``start``. ``fd``: to be given to children."""

    number: int
    fd: int
    start: int
    nbytes: int
    _mapping: weakref.ref[mmap.mmap]

    @property
    def alive(self) -> bool:
        """Whether a tensor of it exists. If not, other memory may be at that address."""
        return self._mapping() is not None


class Segments:
    """All segments of one training process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._known: tuple[Segment, ...] = ()
        """By address. Replaced as a whole: ``find`` takes no lock."""
        self._newest: dict[bool, tuple[mmap.mmap, int]] = {}
        """The newest segments, for small tensors and for others, and how many bytes of each are taken."""
        self._spare: dict[int, list[torch.Tensor]] = {}
        """Buffers that nobody uses, by their bytes."""
        self._spare_bytes = 0

    def allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements on the CPU, zero."""
        nbytes = count * dtype.itemsize
        if not nbytes:
            return torch.empty(0, dtype=dtype, device="cpu")
        with self._lock:
            mapping, used = self._newest.pop(nbytes <= _SMALL, (None, 0))
            if mapping is None or used + nbytes > len(mapping):
                mapping, used = self._map(max(nbytes, _LEAST)), 0
            room = torch.frombuffer(mapping, dtype=torch.uint8, count=nbytes, offset=used)  # holds the mapping
            used += -(-nbytes // _ALIGNED) * _ALIGNED
            if used < len(mapping):
                self._newest[nbytes <= _SMALL] = mapping, used
        return room.view(dtype)

    def find(self, tensor: torch.Tensor) -> tuple[Segment, int] | None:
        """The segment that a contiguous tensor lies in, and its offset in bytes; None where it is other memory."""
        address, known = tensor.data_ptr(), self._known
        index = bisect.bisect_right(known, address, key=_start) - 1
        if index < 0:
            return None
        segment = known[index]
        offset = address - segment.start
        return (segment, offset) if segment.alive and offset + tensor.nbytes <= segment.nbytes else None

    def borrow(self, nbytes: int) -> torch.Tensor:
        """A buffer of at least ``nbytes``, for ``give_back`` once nothing writes into it any more."""
        size = max(_ALIGNED, 1 << (nbytes - 1).bit_length()) if nbytes else _ALIGNED
        with self._lock:
            spare = self._spare.get(size)
            if spare:
                self._spare_bytes -= size
                return spare.pop()
        return self.allocate(size, torch.uint8)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Keep it for another time, if not too many are kept."""
        size = buffer.nbytes
        with self._lock:
            if self._spare_bytes + size <= _KEPT:
                self._spare.setdefault(size, []).append(buffer)
                self._spare_bytes += size

    def _map(self, nbytes: int) -> mmap.mmap:
        """A new segment. Under the lock."""
        fd = os.memfd_create("ftlib-staging", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            mapping = mmap.mmap(fd, nbytes)
        except BaseException:
            os.close(fd)
            raise
        weakref.finalize(mapping, os.close, fd).atexit = False
        start = torch.frombuffer(mapping, dtype=torch.uint8, count=1).data_ptr()
        made = Segment(next(self._numbers), fd, start, nbytes, weakref.ref(mapping))
        self._known = tuple(sorted((made, *(each for each in self._known if each.alive)), key=_start))
        return mapping


def _start(segment: Segment) -> int:
    return segment.start
