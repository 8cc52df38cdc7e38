"""The bytes of a link's path, as they come in: some are read ahead, so that heads and short payloads cost one system call."""

from __future__ import annotations

import time
from collections.abc import Callable

from .paths import Path
from .wire import HEADER, Cursor

_AHEAD = HEADER + 4096
"""Bytes that are read ahead. Must hold a prefix and a header."""
_DIRECT = 1 << 15
"""A payload's rest of at least so many bytes is read to its place without a copy."""
_PIECES = 64
"""The most pieces of memory in one read."""
NO_MEMORY = memoryview(b"")


class Intake:
    """Used by the thread that reads. ``open`` gives it its path."""

    def __init__(self, room: Callable[[], None]) -> None:
        """``room`` is called when who reads has found room for a writer."""
        self._room = room
        self._path: Path | None = None
        self._ahead = memoryview(bytearray(_AHEAD))
        self._low = self._high = 0
        self.last_received = time.monotonic()
        """When bytes came last."""
        self.bytes = 0
        """So many have come."""

    @property
    def opened(self) -> bool:
        """Whether it has its path."""
        return self._path is not None

    @property
    def staged(self) -> int:
        """Bytes that were read ahead and not taken yet."""
        return self._high - self._low

    def open(self, path: Path) -> None:
        """Read from ``path`` from now on."""
        self._path = path

    def release(self) -> None:
        """Nothing is read any more: drop the memory."""
        self._ahead = NO_MEMORY
        self._low = self._high = 0

    def refresh(self) -> None:
        """The path's descriptor says that there is news."""
        if self._path is not None and self._path.refresh():
            self._room()

    def need(self, count: int) -> bool:
        """Whether ``count`` bytes are staged, or could be read now."""
        while self._high - self._low < count:
            if not self._fill():
                return False
        return True

    def take(self, count: int) -> memoryview:
        """The next staged bytes; used up by the next call of another method."""
        low = self._low
        self._low = low + count
        return self._ahead[low : low + count]

    def into(self, memory: memoryview) -> int:
        """Bytes that were written to the beginning of ``memory``; 0 if there are none now."""
        if self._low < self._high:
            count = min(self._high - self._low, len(memory))
            memory[:count] = self.take(count)
            return count
        return self._read(memory)

    def pour(self, cursor: Cursor | None, most: int) -> int:
        """Bytes, at most ``most``, that went to ``cursor``, or nowhere; 0 if there are none now."""
        if self._low == self._high:
            if cursor is not None and len(cursor.first()) >= _DIRECT:
                count = self._read(*cursor.some(_PIECES)) or self._read_again(cursor)
                cursor.advance(count)
                return count
            if not self._fill():
                return 0
        count = min(self._high - self._low, most)
        piece = self.take(count)
        if cursor is not None:
            cursor.put(piece)
        return count

    def _fill(self) -> bool:
        rest = self._high - self._low
        if self._low:
            self._ahead[:rest] = self._ahead[self._low : self._high]
            self._low, self._high = 0, rest
        count = self._read(self._ahead[rest:])
        self._high += count
        return count > 0

    def _read_again(self, cursor: Cursor) -> int:
        """In the middle of a long payload: more may have come since the last news."""
        path = self._path
        if path is None or not path.quick:
            return 0
        if path.refresh():
            self._room()
        return self._read(*cursor.some(1))

    def _read(self, *into: memoryview) -> int:
        assert self._path is not None
        count = self._path.read(into)
        if count:
            self.last_received = time.monotonic()
            self.bytes += count
        return count
