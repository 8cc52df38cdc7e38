"""Memory that the training process shares with the children that have its communicators: what rows are cut from.

A row that is freed is used again once nothing that was enqueued on it is under way in this process. Children hold rows through
whoever waits for them: a row on which one may still work is not freed.
"""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any

import torch

from ftlib.frameworks.isolated.records import Packed, Segment
from ftlib.frameworks.isolated.segments import Segments


@dataclass(frozen=True, slots=True)
class Span:
    """Where a row lies: in the shared memory ``number``, from byte ``offset`` on."""

    number: int
    offset: int
    owner: Any
    """Has ``alive``: false once no row of that memory exists."""
    record: Packed
    """Has a child share that memory, with a descriptor beside it if ``fd`` is one."""
    fd: int = -1


class Memory(ABC):
    """Of one process; outlives its children. Any thread."""

    @abstractmethod
    def row(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements at ``place``, not initialized."""

    @abstractmethod
    def find(self, tensor: torch.Tensor) -> Span | None:
        """Where a contiguous tensor lies; None if children have no such memory."""

    def start(self, place: str) -> None:  # noqa: B027
        """Find out whether there can be such memory there. Raises whatever keeps it from being had."""

    def trim(self) -> None:  # noqa: B027
        """All children are gone: give back what is not in use."""


class HostMemory(Memory):
    """CPU memory, for a device that works in it (see ``Device.unified``). What is enqueued there happens at once."""

    def __init__(self) -> None:
        self._segments = Segments()
        self._left: deque[torch.Tensor] = deque()
        """Buffers whose rows have been freed. A finalizer adds to it, at any moment, so it has no lock."""

    def row(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:  # noqa: ARG002
        """See ``Memory``."""
        nbytes = count * dtype.itemsize
        while self._left:
            self._give_back()
        buffer = self._segments.borrow(nbytes)
        lent = memoryview(buffer.numpy().data)
        weakref.finalize(lent, self._left.append, buffer).atexit = False
        return torch.frombuffer(lent, dtype=torch.uint8)[:nbytes].view(dtype)

    def find(self, tensor: torch.Tensor) -> Span | None:
        """See ``Memory``."""
        found = self._segments.find(tensor)
        if found is None:
            return None
        segment, offset = found
        return Span(segment.number, offset, segment, Segment(segment.number, segment.nbytes), segment.fd)

    def _give_back(self) -> None:
        try:
            self._segments.give_back(self._left.popleft())
        except IndexError:  # another thread was quicker
            return
