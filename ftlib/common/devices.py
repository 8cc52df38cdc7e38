"""Everything that touches an accelerator's streams, events and copies: the one door between ftlib and a device.

Work on a device is *enqueued* on a stream and carried out later, in order. A thread waits for it only by the events of
``Device.waited`` (see ``device_waits``). Tests replace the device by one that does everything as late as possible.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..errors import ConfigError
from .memory import Pages

HOST = ""
"""The place of CPU tensors."""


class Event(ABC):
    """A mark on a stream."""

    @abstractmethod
    def query(self) -> bool:
        """True once the device has done everything that was enqueued before the mark. Raises the device's error, if any."""


class SideStream(ABC):
    """A stream of its own, for a library that is told on which stream to enqueue. One thread at a time."""

    handle = 0
    """The stream as libraries name it: a ``cudaStream_t``, as a number."""

    @abstractmethod
    def follow(self, event: Event) -> None:
        """Whatever is enqueued here from now on begins after ``event``. Does not wait."""

    @abstractmethod
    def record(self) -> Event:
        """Mark this stream."""

    @abstractmethod
    def current(self) -> AbstractContextManager[object]:
        """Until the end of the block, this is the current stream of this thread."""


class Device(ABC):
    """One accelerator. A stream belongs to a thread: operations go to the stream that is current there, as in torch."""

    unified = False
    """True if it works in CPU memory as in its own, so that nothing need be copied between the two."""

    def __init__(self) -> None:
        self.operations = 0
        """Number of operations (kernels over any number of tensors, or copies) enqueued so far."""
        self.waits = 0
        """How often a thread has waited for the device so far."""

    @abstractmethod
    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` uninitialized elements on the device. Freed memory is reused only in the stream's order."""

    @abstractmethod
    def launch(self, operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:
        """Enqueue ``operation``, one kernel or copy. ``writes``: what it overwrites without having read it."""

    @abstractmethod
    def record(self) -> Event:
        """Mark the current stream."""

    @abstractmethod
    def follow(self, event: Event) -> None:
        """Whatever this thread enqueues from now on begins after ``event``. Does not wait."""

    @abstractmethod
    def beside(self) -> AbstractContextManager[object]:
        """Until the end of the block, this thread enqueues on another stream than programs do, beside what they enqueue."""

    @abstractmethod
    def ahead(self) -> AbstractContextManager[object]:
        """As ``beside``, on the stream of what is sent while a program computes: no copy of state is in its way."""

    @property
    def stream_id(self) -> object:
        """What tells the stream that is current in this thread from others."""
        return None

    def here(self) -> AbstractContextManager[object]:
        """A block in which another thread enqueues on the stream that is current in this one now. To be entered once."""
        return nullcontext()

    @abstractmethod
    def side_stream(self) -> SideStream:
        """A stream that no program enqueues on."""

    def use(self) -> None:  # noqa: B027 - there may be only one
        """Make this the current device of the thread that calls it."""

    def check_capture(self) -> None:  # noqa: B027 - most devices record no graphs
        """ConfigError if what is enqueued on the current stream is recorded for later, and not carried out."""

    @abstractmethod
    def pin(self, row: torch.Tensor) -> None:
        """Lock the pages of ``row``, CPU memory, as long as it exists: copies to and from it need no wait then."""

    def enqueue(self, operation: Callable[[], object], *writes: torch.Tensor) -> None:
        """``launch``, counted."""
        self.operations += 1
        self.launch(operation, writes)

    def waited(self) -> Event:
        """A mark that the caller waits for; counted."""
        self.awaited()
        return self.record()

    def awaited(self) -> None:
        """Count one wait; also for what a library has enqueued, and waits for itself."""
        self.waits += 1


_PORTABLE = 1
"""cudaHostRegisterPortable: the pages are locked for all devices of the process."""


class _CudaEvent(Event):
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def query(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]


class _CudaStream(SideStream):
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self.handle = stream.cuda_stream

    def follow(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent)
        self._stream.wait_event(event.event)

    def record(self) -> Event:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaEvent(event)

    def current(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream)


class Cuda(Device):
    """A GPU of NVIDIA's, as torch sees it."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._device = torch.device("cuda", index)
        self._side: torch.cuda.Stream | None = None
        """The stream for ``beside``, once it was needed."""
        self._first: torch.cuda.Stream | None = None
        """The stream for ``ahead``, once it was needed."""
        self._making = threading.Lock()

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """From torch's caching allocator."""
        return torch.empty(count, dtype=dtype, device=self._device)

    def launch(self, operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:  # noqa: ARG002
        """Torch enqueues on the current stream of the tensors' device."""
        with torch.cuda.device(self._device):
            operation()

    def record(self) -> Event:
        """An event without timing on the current stream."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return _CudaEvent(event)

    def follow(self, event: Event) -> None:
        """As ``Stream.wait_event``."""
        assert isinstance(event, _CudaEvent)
        torch.cuda.current_stream(self._device).wait_event(event.event)

    def beside(self) -> AbstractContextManager[object]:
        """One stream for all threads."""
        with self._making:
            if self._side is None:
                self._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._side)

    def ahead(self) -> AbstractContextManager[object]:
        """One stream for all threads, of high priority: what is enqueued there is short, and peers wait for it."""
        with self._making:
            if self._first is None:
                self._first = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._first)

    @property
    def stream_id(self) -> object:
        """Its number."""
        return torch.cuda.current_stream(self._device).cuda_stream

    def side_stream(self) -> SideStream:
        """Of high priority: torch keeps few streams, which it hands out again and again, and these are the rarer ones."""
        return _CudaStream(torch.cuda.Stream(self._device, priority=-1))  # type: ignore[no-untyped-call]

    def use(self) -> None:
        """As ``torch.cuda.set_device``."""
        torch.cuda.set_device(self._device)

    def check_capture(self) -> None:
        """A CUDA graph would record the copies, and repeat them without the group's operations in between."""
        with torch.cuda.device(self._device):
            captured = torch.cuda.is_current_stream_capturing()
        if captured:
            text = "a CUDA graph is captured on the current stream, and no graph can hold an operation between members"
            raise ConfigError(f"{text}: capture forward and backward alone, and call ftlib between the replays")

    def here(self) -> AbstractContextManager[object]:
        """As ``torch.cuda.stream``."""
        return torch.cuda.stream(torch.cuda.current_stream(self._device))

    def pin(self, row: torch.Tensor) -> None:
        """Register the pages with the driver until the memory of ``row`` is freed."""
        address, nbytes = row.data_ptr(), row.nbytes
        if not nbytes or not torch.cuda.is_available():  # whoever follows a call may lack the others' devices
            return
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(address, nbytes, _PORTABLE)):
            return  # no such memory is left: copies wait then, and are right all the same
        weakref.finalize(row.untyped_storage(), runtime.cudaHostUnregister, address)


class Rehearsed(Device):
    """The CPU, taken for a device: what is enqueued happens at once."""

    unified = True

    def __init__(self) -> None:
        super().__init__()
        self._pages = Pages()

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """CPU memory, kept for the next row like this when it is freed: so does torch with a GPU's."""
        return self._pages.row(count, dtype)

    def launch(self, operation: Callable[[], object], writes: Sequence[torch.Tensor]) -> None:  # noqa: ARG002
        """Do it."""
        operation()

    def record(self) -> Event:
        """A mark that is reached."""
        return _Past()

    def follow(self, event: Event) -> None:
        """Everything has happened already."""

    def beside(self) -> AbstractContextManager[object]:
        """Nothing is ever under way."""
        return nullcontext()

    def ahead(self) -> AbstractContextManager[object]:
        """As ``beside``."""
        return nullcontext()

    def side_stream(self) -> SideStream:
        """All streams are alike."""
        return _Nowhere()

    def pin(self, row: torch.Tensor) -> None:
        """Copies need nothing."""


class _Past(Event):
    def query(self) -> bool:
        return True


class _Nowhere(SideStream):
    def follow(self, event: Event) -> None:
        pass

    def record(self) -> Event:
        return _Past()

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()


_devices: dict[str, Device] = {}
_placing: list[tuple[Callable[[torch.Tensor], str], Callable[[str], Device]]] = []
"""What tests put in the place of torch's answer, newest last."""
_opening = threading.Lock()


def place_of(tensor: torch.Tensor) -> str:
    """Where ``tensor`` is: ``HOST``, or a device whose tensors are staged (``cuda:0``)."""
    if _placing:
        return _placing[-1][0](tensor)
    return HOST if tensor.is_cpu else str(tensor.device)


def device_at(place: str) -> Device:
    """The device at ``place``; ValueError if there is no such kind of device."""
    if _placing:
        return _placing[-1][1](place)
    with _opening:
        found = _devices.get(place)
        if found is None:
            kind, _, index = place.partition(":")
            if kind not in ("cuda", "rehearsal"):
                raise ValueError(f"ftlib cannot use {kind} devices: move the tensors to the CPU or to a CUDA device")
            found = _devices[place] = Cuda(int(index or 0)) if kind == "cuda" else Rehearsed()
        return found


def thread_device() -> Callable[[], None]:
    """A function that makes this thread's current device that of another thread: the one that calls it.

    A thread of ours calls it before it runs code of the program's, which relies on the current device.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return _nothing
    index = torch.cuda.current_device()
    return lambda: torch.cuda.set_device(index)


def _nothing() -> None:
    """The program uses no device."""


@contextmanager
def placed_by(place: Callable[[torch.Tensor], str], device: Callable[[str], Device]) -> Iterator[None]:
    """Until the end of the block, ``place`` says where tensors are, and ``device`` which device is there."""
    answers = (place, device)
    _placing.append(answers)
    try:
        yield
    finally:
        _placing.remove(answers)
