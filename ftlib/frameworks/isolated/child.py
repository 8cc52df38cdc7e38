"""A process that can be killed, from the inside: it reads records, and always answers.

What a child does is for its kind to say: build groups (``group_child``), or communicators of an accelerator. Whatever takes
time is done on other threads, so that the one that reads records never waits.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from ftlib.common.processes import call_process
from ftlib.errors import GroupError
from ftlib.frameworks import sockets

from .records import LIMIT, Packed, Ping, Segment

REST = 0.3
"""Seconds from the end of the training process to that of its children: first those that recover have the processors."""


class Child(ABC):
    """One of it in a process. ``run`` until the training process closes its end, or says so."""

    PROCESS: str
    """What a process of this kind is called."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._memory: dict[int, torch.Tensor] = {}
        """What is shared with the training process, as bytes, by its number there."""

    def run(self) -> None:
        """Read records until the end."""
        call_process(self.PROCESS)
        sockets.guard_forks()
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, LIMIT + 1, 1)
            if not data:
                self.left()
                time.sleep(REST)
                return
            record = self.unpack(data)
            match record:
                case Ping():
                    self.tell(record)
                case Segment(number, nbytes):
                    self._take(number, nbytes, fds)
                case _:
                    self.carry_out(record)

    def tell(self, record: Packed) -> None:
        """Send a record to the training process. Any thread."""
        try:
            self._sock.send(record.pack())
        except OSError:  # the training process has ended, and this one is about to
            os._exit(0)

    def row(self, number: int, offset: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """``count`` elements of shared memory. GroupError if that is not what the training process has shared."""
        memory, end = self._memory.get(number), offset + count * dtype.itemsize
        if memory is None or end > memory.numel() or offset % dtype.itemsize:
            raise GroupError(f"an operation is on memory outside of segment {number}, or between its elements")
        return memory[offset:end].view(dtype)

    def share(self, number: int, memory: torch.Tensor) -> None:
        """``memory``, bytes, is shared from now on. On the thread that reads."""
        self._memory[number] = memory

    def _take(self, number: int, nbytes: int, fds: list[int]) -> None:
        if not nbytes:
            self._memory.pop(number, None)
            return
        [fd] = fds
        try:
            self.share(number, torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8))
        finally:
            os.close(fd)

    # --- for each kind -------------------------------------------------------------------------------------------------

    @abstractmethod
    def unpack(self, data: bytes) -> Packed:
        """The record of these bytes. RecordError, which ends this process, for anything else."""

    @abstractmethod
    def carry_out(self, record: Packed) -> None:
        """An order of the training process. Must not wait. ValueError, which ends this process, for what is none."""

    def left(self) -> None:  # noqa: B027
        """The training process has ended, or has closed its end."""


Kind = Callable[[socket.socket], Child]
"""Makes a child that serves at a socket."""


def serve(kind: Kind, sock: socket.socket, settle: Callable[[], Any]) -> None:
    """The life of a child. ``settle``: what it has to do first."""
    code = 1
    try:
        settle()
        kind(sock).run()
        code = 0
    finally:
        os._exit(code)
