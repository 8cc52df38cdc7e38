"""The CPU, taken for a GPU whose side streams carry out later what is enqueued there; the program's stream does so at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ftlib.common import devices
from ftlib.common.devices import HOST, Rehearsed, SideStream
from ftlib.frameworks.accelerators.nccl.gpus import Gpu, Gpus
from ftlib.frameworks.accelerators.rehearsal.accelerator import PLACE
from ftlib.frameworks.accelerators.rehearsal.stream import Event, Stream

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""What is on the device."""


class _Mark(devices.Event):
    def __init__(self, event: Event) -> None:
        self._event = event

    def query(self) -> bool:
        return self._event.query()


class RehearsedStream(SideStream):
    """One of these, known to whoever has its handle."""

    def __init__(self, handle: int, here: threading.local) -> None:
        self.handle, self._here, self.stream = handle, here, Stream()

    def follow(self, event: devices.Event) -> None:
        assert event.query(), "what the program has enqueued happens at once"

    def record(self) -> devices.Event:
        return _Mark(self.stream.record())

    @contextmanager
    def current(self) -> Iterator[None]:
        self._here.stream = self.stream
        try:
            yield
        finally:
            self._here.stream = None


class StreamedDevice(Rehearsed):
    """See above."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()
        self._handles = itertools.count(0x1000)
        self._streams: dict[int, RehearsedStream] = {}

    def side_stream(self) -> RehearsedStream:
        made = RehearsedStream(next(self._handles), self._here)
        self._streams[made.handle] = made
        return made

    def stream_of(self, handle: int) -> Stream:
        return self._streams[handle].stream

    def launch(self, operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:
        stream = getattr(self._here, "stream", None)
        if stream is None:
            operation()
        else:
            stream.enqueue(operation, 0.0)


DEVICE = StreamedDevice()
"""The one of this process."""


def place() -> None:
    """From now on it is the rehearsed device of this process. For all others it is as that one was."""
    devices._devices[PLACE] = DEVICE


class RehearsedGpus(Gpus):
    """One GPU, on which all tensors of the CPU with floating-point numbers are."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    def current(self) -> Gpu:
        return Gpu(PLACE, self._uuid)

    def place(self, tensor: torch.Tensor) -> str:
        return PLACE if tensor.dtype in FLOATS else HOST

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.dtype in FLOATS
