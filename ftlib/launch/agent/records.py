"""The agent's end of the socket over which one worker's ``logging`` comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Protocol

import msgpack

from ..processes.worker import Paused

Record = tuple[int, str, float, str]
"""Level, logger, seconds since 1970, text."""
_PACKET = 1 << 18
_DRAIN = 4 << 20
"""Bytes that a dead worker may have left: its socket holds less."""


class RecordSink(Protocol):
    """Takes a worker's records."""

    @property
    def full(self) -> bool:
        """Whether reading should pause."""
        ...

    def records(self, index: int, records: Sequence[Record]) -> None:
        """Records in the order in which they came."""

    def pause(self, stream: Paused) -> None:
        """``stream`` stopped reading because of ``full``: call its ``resume`` when there is room."""


class Records:
    """Reads packets, each a record. What is none is dropped: any process of the worker's may write there."""

    def __init__(self, fd: int, index: int, loop: asyncio.AbstractEventLoop, sink: RecordSink) -> None:
        self._fd = fd
        self._index = index
        self._loop = loop
        self._sink = sink
        self._open = True
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._readable)

    def resume(self) -> None:
        """Read again, since there is room again."""
        if self._open:
            self._loop.add_reader(self._fd, self._readable)

    def finish(self) -> None:
        """Read what a dead worker left, and close. No more: a process in a session of its own may still write there."""
        taken = 0
        while self._open and taken < _DRAIN and (size := self._read()):
            taken += size
        self._end()

    def _readable(self) -> None:
        if self._sink.full:
            self._loop.remove_reader(self._fd)
            self._sink.pause(self)
        else:
            self._read()

    def _read(self) -> int:
        """Pass on what is there, at most some dozens; returns how many bytes it was."""
        size = 0
        found: list[Record] = []
        for _ in range(64):
            try:
                packet = os.read(self._fd, _PACKET)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self._end()
                break
            size += len(packet)
            try:
                level, name, created, text = msgpack.unpackb(packet)
                found.append((int(level), str(name), float(created), str(text)))
            except Exception:  # noqa: BLE001, S112 - msgpack documents several unrelated errors
                continue
        if found:
            self._sink.records(self._index, found)
        return size

    def _end(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
