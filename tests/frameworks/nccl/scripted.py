"""A libnccl that does nothing but what a test has written down for it, and a device that keeps the same log."""
# ruff: noqa: N802 - NCCL's names

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ftlib.common.devices import HOST, Event, Rehearsed, SideStream, placed_by
from ftlib.frameworks.accelerators.nccl.gpus import Gpu
from ftlib.frameworks.accelerators.nccl.library import Library
from ftlib.frameworks.accelerators.nccl.results import Result
from tests.frameworks.nccl.fake import TEXTS, Functions
from tests.harness.basics import TIMEOUT

HANDLE, STREAM = 0x7F0000001230, 0x560000004560
"""Of the communicator, of the stream: both need more than 32 bits."""


class Scripted:
    """NCCL's functions: each says SUCCESS, unless ``codes`` has another answer for it."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        """Functions with their arguments; but for questions, and what the device was told."""
        self.codes: dict[str, int] = {}
        self.states: deque[int] = deque()
        """What questions are answered with, one after the other, before ``state``."""
        self.state = int(Result.SUCCESS)
        self.version = 22809
        self.hang: dict[str, threading.Event] = {}
        """Functions that return once their event is set."""
        self.handle = HANDLE
        self.configs: list[bytes] = []
        self._texts = {code: ctypes.create_string_buffer(text) for code, text in enumerate(TEXTS)}
        self._unknown = ctypes.create_string_buffer(b"unknown result code")
        self._last = ctypes.create_string_buffer(b"what NCCL said last,\n in two lines")

    @property
    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]

    def _say(self, name: str, *arguments: Any) -> int:
        self.log.append((name, *arguments))
        if name in self.hang:
            assert self.hang[name].wait(TIMEOUT)
        return self.codes.get(name, Result.SUCCESS)

    def ncclGetVersion(self, version: Any) -> int:
        version[0] = self.version
        return self.codes.get("ncclGetVersion", Result.SUCCESS)

    def ncclGetErrorString(self, result: int) -> int:
        return ctypes.addressof(self._texts.get(result, self._unknown))

    def ncclGetLastError(self, comm: int | None) -> int:
        assert comm in (None, self.handle)
        return ctypes.addressof(self._last)

    def ncclGetUniqueId(self, identity: Any) -> int:
        ctypes.memmove(identity, bytes(range(128)), 128)
        return self._say("ncclGetUniqueId")

    def ncclCommInitRankConfig(self, comm: Any, size: int, identity: Any, rank: int, config: Any) -> int:
        self.configs.append(ctypes.string_at(config, config[0].size))
        comm[0] = self.handle
        return self._say("ncclCommInitRankConfig", size, bytes(identity), rank)

    def ncclCommGetAsyncError(self, comm: int, error: Any) -> int:
        assert comm == self.handle
        error[0] = self.states.popleft() if self.states else self.state
        return self.codes.get("ncclCommGetAsyncError", Result.SUCCESS)

    def ncclAllReduce(self, *arguments: int) -> int:
        return self._say("ncclAllReduce", *arguments)

    def ncclBroadcast(self, *arguments: int) -> int:
        return self._say("ncclBroadcast", *arguments)

    def ncclGroupStart(self) -> int:
        return self._say("ncclGroupStart")

    def ncclGroupEnd(self) -> int:
        return self._say("ncclGroupEnd")

    def ncclCommRevoke(self, *arguments: int) -> int:
        return self._say("ncclCommRevoke", *arguments)

    def ncclCommAbort(self, *arguments: int) -> int:
        return self._say("ncclCommAbort", *arguments)

    def library(self) -> Library:
        return Library(Functions(self))


class _Mark(Event):
    def __init__(self, device: LoggingDevice) -> None:
        self._device = device

    def query(self) -> bool:
        if self._device.error is not None:
            raise self._device.error
        return self._device.done


class _Stream(SideStream):
    handle = STREAM

    def __init__(self, device: LoggingDevice) -> None:
        self._device = device

    def follow(self, event: Event) -> None:
        self._device.log.append(("follow", event))

    def record(self) -> Event:
        self._device.log.append(("record",))
        if self._device.error is not None:
            raise self._device.error
        return _Mark(self._device)

    @contextmanager
    def current(self) -> Iterator[None]:
        self._device.current = True
        yield
        self._device.current = False


class LoggingDevice(Rehearsed):
    def __init__(self, log: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.log = log
        self.done = True
        """Whether its events have been reached."""
        self.error: Exception | None = None
        """What its events raise."""
        self.current = False
        """Whether the side stream is the current one."""

    def side_stream(self) -> SideStream:
        return _Stream(self)


@contextmanager
def scripted() -> Iterator[tuple[Scripted, LoggingDevice, Gpu]]:
    """The three, until the end of the block."""
    nccl = Scripted()
    device = LoggingDevice(nccl.log)
    with placed_by(lambda _: HOST, lambda _: device):
        yield nccl, device, Gpu("rehearsal:0", "GPU-1")
