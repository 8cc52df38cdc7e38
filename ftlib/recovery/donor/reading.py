"""A range of the live state, read at one version: copied, or hashed.

The range is read in units, so that several threads can share the work. The owner (``snapshots``) holds a lock around every
method except ``work``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum

import torch
import xxhash

from ..layout.flat_state import FlatState

UNIT = 4 << 20
"""Bytes that a thread reads in one go: about a millisecond, for which an optimizer may have to wait."""


class ReadingStage(Enum):
    """READING -> DONE; any -> FAILED, for good."""

    READING = "reading"
    DONE = "done"
    FAILED = "failed"


class Reading(ABC):
    """Bytes ``start`` to ``stop`` of ``flat``, on entry to call ``version``."""

    def __init__(self, flat: FlatState, start: int, stop: int, version: int) -> None:
        """From now on the range's tensors must not change. ValueError if there are no such bytes."""
        self.version = version
        self.stage = ReadingStage.READING if start < stop else ReadingStage.DONE
        self.why = ""
        """Why the reading failed."""
        self.running = 0
        """Number of units that are being read."""
        self._flat = flat
        self._start, self._stop = start, stop
        self._next = start
        self._tensors = [piece.tensor for piece in flat.pieces(start, stop)]
        self._seen = {index: self._mark(index) for index in self._tensors}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._start}-{self._stop} @{self.version} {self.stage.value}>"

    @property
    def left(self) -> bool:
        """True while there are units that no thread has taken."""
        return self.stage is ReadingStage.READING and self._next < self._stop

    def take(self) -> tuple[int, int] | None:
        """A unit for the calling thread to read; None if there is none (now)."""
        if not self.left:
            return None
        start, self._next = self._next, min(self._next + UNIT, self._stop)
        self.running += 1
        return start, self._next

    def work(self, unit: tuple[int, int]) -> str:
        """Read ``unit``, without the lock. Returns why that failed, else an empty text."""
        try:
            self._read(*unit)
        except Exception as error:  # noqa: BLE001 - a device's error, or no memory: the training goes on without this
            return f"{type(error).__name__}: {error}"
        return self.changed([piece.tensor for piece in self._flat.pieces(*unit)])

    def finish(self, why: str) -> None:
        """A unit has been read; ``why``: what ``work`` returned."""
        self.running -= 1
        if why:
            self.fail(why)
        elif self.stage is ReadingStage.READING and not self.left and not self.running:
            self.stage = ReadingStage.DONE

    def fail(self, why: str) -> None:
        """Give the reading up."""
        if self.stage is not ReadingStage.FAILED:
            self.stage, self.why = ReadingStage.FAILED, why

    def changed(self, indices: list[int] | None = None) -> str:
        """A text that names a tensor (of ``indices``, or any) that has changed since the beginning; empty if none has."""
        for index in self._tensors if indices is None else indices:
            if self._mark(index) != self._seen[index]:
                return (
                    f"{self._flat.paths[index]} was changed in call {self.version} by something else than an optimizer's step"
                )
        return ""

    def _mark(self, index: int) -> tuple[int, int]:
        tensor = self._flat.tensors[index]
        return tensor._version, tensor.data_ptr()  # noqa: SLF001 - that is its public name

    @abstractmethod
    def _read(self, start: int, stop: int) -> None:
        """Read the bytes ``start`` to ``stop``."""


class Copying(Reading):
    """A copy of the range. ``joiners``: the members that need the copy."""

    def __init__(self, flat: FlatState, start: int, stop: int, version: int, data: torch.Tensor) -> None:
        """``data``: the destination (uint8, as long as the range)."""
        super().__init__(flat, start, stop, version)
        self.data = data
        """The bytes; valid once the stage is DONE."""
        self.joiners: set[str] = set()

    def _read(self, start: int, stop: int) -> None:
        data = self.data[start - self._start : stop - self._start]
        if data.numel():  # empty if the copy was given up meanwhile
            self._flat.copy_out(start, stop, data)

    def fail(self, why: str) -> None:
        """Give the copy up; its memory is freed once no thread reads it any more."""
        super().fail(why)
        self.data = self.data.new_empty(0)


class Hashing(Reading):
    """The xxh3_128 digest of the range: one unit after the other."""

    def __init__(self, flat: FlatState, start: int, stop: int, version: int) -> None:
        super().__init__(flat, start, stop, version)
        self._hash = xxhash.xxh3_128()

    def take(self) -> tuple[int, int] | None:
        """See ``Reading``. None while another thread reads the previous unit."""
        return None if self.running else super().take()

    @property
    def digest(self) -> bytes:
        """The digest, once the stage is DONE."""
        return self._hash.digest()

    def _read(self, start: int, stop: int) -> None:
        views = self._flat.views(start, stop)
        if views is None:
            data = torch.empty(stop - start, dtype=torch.uint8, device="cpu")
            self._flat.copy_out(start, stop, data)
            views = [data.numpy().data]
        for view in views:
            self._hash.update(view)
