"""A device that does everything as late as it may, on tensors of the CPU that are taken for its own.

Each thread has streams. What is enqueued there happens when somebody asks for an event, or now and then by chance; a target of
something that has not happened yet may hold poison already. A missing wait, or a missing order between two streams, shows as
a wrong value.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch

from ftlib.common.devices import Device, Event, SideStream, placed_by

PLACE = "late:0"


class _Stream:
    def __init__(self) -> None:
        self.entries: list[Callable[[], object] | LateEvent] = []
        """What is enqueued: an operation, or an event of another stream that comes first."""
        self.done = 0
        """How many entries have happened."""


class LateEvent(Event):
    def __init__(self, device: LateDevice, stream: _Stream, looks: int) -> None:
        self.device, self.stream, self.position, self.looks = device, stream, len(stream.entries), looks

    def query(self) -> bool:
        return self.device.reached(self)


class LateStream(SideStream):
    def __init__(self, device: LateDevice, stream: _Stream) -> None:
        self._device, self._stream = device, stream

    def follow(self, event: Event) -> None:
        with self._device.on(self._stream):
            self._device.follow(event)

    def record(self) -> Event:
        with self._device.on(self._stream):
            return self._device.record()

    def current(self) -> AbstractContextManager[None]:
        return self._device.on(self._stream)


class LateDevice(Device):
    """``takes``: which tensors are on it."""

    def __init__(self, seed: int, takes: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.place = PLACE
        self.takes = takes
        self._chance = random.Random(seed)
        self._here = threading.local()
        self._streams: list[_Stream] = []
        self._guard = threading.RLock()

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself, wherever it is taken to be: as ``RealDevice``."""
        return tensor

    @contextmanager
    def placed(self) -> Iterator[LateDevice]:
        """Until the end of the block, tensors that it takes are on this device."""
        with placed_by(lambda tensor: PLACE if self.takes(tensor) else "", lambda _: self):
            yield self

    @contextmanager
    def taking(self, takes: Callable[[torch.Tensor], bool]) -> Iterator[None]:
        """Until the end of the block, these tensors are on it."""
        before, self.takes = self.takes, takes
        try:
            yield
        finally:
            self.takes = before

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Until the end of the block, this thread enqueues on another stream of its own."""
        with self.on(self._new()):
            yield

    @contextmanager
    def on(self, stream: _Stream) -> Iterator[None]:
        """Until the end of the block, this thread enqueues on that stream."""
        before, self._here.stream = self._stream(), stream
        try:
            yield
        finally:
            self._here.stream = before

    def update(self, operation: Callable[[], object], *tensors: torch.Tensor) -> None:
        """As ``enqueue``, for an operation of a program's that changes these tensors, which it reads as well."""
        with self._guard:
            _count(tensors, 1)
            self.enqueue(lambda: _uncounted(operation, tensors))

    def synchronize(self) -> None:
        """Let everything happen, on all streams."""
        with self._guard:
            for stream in self._streams:
                self._run(stream, len(stream.entries))

    # --- as a Device ---------------------------------------------------------------------------------------------------

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        row = torch.empty(count, dtype=dtype)
        _poison(row)
        return row

    def launch(self, operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:
        with self._guard:
            stream = self._stream()
            _count(writes, 1)
            stream.entries.append(lambda: _uncounted(lambda: [_poison(target) for target in writes], writes))
            if self._chance.random() < 0.3:
                self._run(stream, len(stream.entries))
            stream.entries.append(lambda: _uncounted(operation, writes))
            if self._chance.random() < 0.1:
                other = self._chance.choice(self._streams)
                self._run(other, self._chance.randint(other.done, len(other.entries)))

    def record(self) -> LateEvent:
        with self._guard:
            return LateEvent(self, self._stream(), self._chance.choice((0, 0, 1, 3)))

    def follow(self, event: Event) -> None:
        assert isinstance(event, LateEvent)
        with self._guard:
            stream = self._stream()
            if stream is not event.stream:
                stream.entries.append(event)

    def beside(self) -> AbstractContextManager[None]:
        return self.stream()

    def ahead(self) -> AbstractContextManager[None]:
        return self.stream()

    @property
    def stream_id(self) -> object:
        return self._stream()

    def side_stream(self) -> LateStream:
        return LateStream(self, self._new())

    def pin(self, row: torch.Tensor) -> None:
        pass

    def reached(self, event: LateEvent) -> bool:
        with self._guard:
            if event.looks:
                event.looks -= 1
                return event.stream.done >= event.position
            self._run(event.stream, event.position)
            return True

    # --- under the guard -----------------------------------------------------------------------------------------------

    def _new(self) -> _Stream:
        with self._guard:
            self._streams.append(_Stream())
            return self._streams[-1]

    def _stream(self) -> _Stream:
        stream: _Stream | None = getattr(self._here, "stream", None)
        if stream is None:
            stream = self._here.stream = self._new()
        return stream

    def _run(self, stream: _Stream, until: int) -> None:
        while stream.done < until:
            entry = stream.entries[stream.done]
            if isinstance(entry, LateEvent):
                self._run(entry.stream, entry.position)
            else:
                with torch.no_grad():
                    entry()
            stream.entries[stream.done] = _nothing
            stream.done += 1


def _count(tensors: Sequence[torch.Tensor], more: int) -> None:
    """So many changes more: torch counts a change when it is enqueued."""
    counted = [tensor for tensor in tensors if not tensor.is_inference()]
    versions = [tensor._version + more for tensor in counted]
    torch._C._autograd._unsafe_set_version_counter(tuple(counted), tuple(versions))


def _uncounted(operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:
    """Do it; these changes were counted when it was enqueued."""
    before = [0 if tensor.is_inference() else tensor._version for tensor in writes]
    operation()
    for tensor, version in zip(writes, before, strict=True):
        if not tensor.is_inference():
            _count([tensor], version - tensor._version)


def _nothing() -> None:
    """What has happened is let go of."""


def _poison(target: torch.Tensor) -> None:
    with torch.no_grad():
        if target.dtype is torch.bool:
            target.fill_(True)
        else:
            target.fill_(float("nan") if target.is_floating_point() else 77)
