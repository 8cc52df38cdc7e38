"""How tensors get from one GPU to another: by a process group of the two, or by memory of one that the other maps (CUDA IPC).

A carrier serves one direction; one end sends, the other receives, in the same order. Each call returns once the memory is the
caller's again, or full: so nobody else has to know of streams. NCCL has not run between two GPUs yet: tests put Gloo in its
place.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ...common.devices import HOST, Event, device_at, place_of
from ...common.memory import bytes_of
from ...links.errors import CollectiveError, CollectiveTimeout, LinkBroken
from ..works import DEFAULT_TIMEOUT
from .store import LinkStore

BUILD_TIMEOUT = 60.0
"""Seconds for a carrier to be built; tensors go through host memory meanwhile."""
_POLL = (20e-6, 1e-3)
"""Seconds between the first two looks at an event of the device, and the longest."""
_ANSWER = 2 * DEFAULT_TIMEOUT
"""Seconds for the other end's word: it may wait for kernels that were launched there before."""
_HANDLES = 64
"""Tensors whose handles go in one word: that has at most 64 KiB."""
Make = Callable[[LinkStore, int], Any]
"""Makes a process group of two, of a store and a rank."""


def batched(tensors: Sequence[torch.Tensor], count: int) -> Iterator[Sequence[torch.Tensor]]:
    """In turn, so many at a time."""
    return (tensors[at : at + count] for at in range(0, len(tensors), count))


def await_event(event: Event, what: str, timeout: float = DEFAULT_TIMEOUT) -> None:
    """Block this thread until the device has come to ``event``, the end of ``what``; CollectiveTimeout after ``timeout`` s.

    A device wakes nobody: it is asked again and again, more and more seldom.
    """
    pause, longest = _POLL
    deadline = time.monotonic() + timeout
    while not event.query():
        if time.monotonic() > deadline:
            raise CollectiveTimeout(f"the GPU has not done {what} in {timeout:g} s: look for a kernel before it that hangs")
        time.sleep(pause)
        pause = min(2 * pause, longest)


class Carrier(ABC):
    """One end of a direction. One thread at a time; ``abort`` from any."""

    def __init__(self, place: str) -> None:
        """``place``: of this end's tensors."""
        self.place = place

    @abstractmethod
    def build(self) -> None:
        """Get ready, and prove it with the other end, which does the same. Any exception means: not this way."""

    @abstractmethod
    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Contiguous, not empty, with nothing that is still to be written."""

    @abstractmethod
    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """Fill them."""

    @abstractmethod
    def on_message(self, said: list[Any]) -> None:
        """The other end has said something, over the link. Must not wait."""

    @abstractmethod
    def abort(self, why: str) -> None:
        """End what is under way, with an error. Idempotent."""


class GroupCarrier(Carrier):
    """By a process group of two, rank 0 sends; on a stream of its own."""

    def __init__(self, make: Make, tell: Callable[[list[Any]], None], *, sends: bool, place: str) -> None:
        """``make``: of NCCL's; ``tell``: reaches the other end's ``on_message``; ``place``: of this end's tensors."""
        super().__init__(place)
        self._make = make
        self._rank = 0 if sends else 1
        self._device = device_at(place)
        self._stream = self._device.side_stream()
        self._store = LinkStore(lambda key, value: tell([key, value]), BUILD_TIMEOUT)
        self._group: Any = None
        self._why = ""

    def build(self) -> None:
        """See ``Carrier``. One word goes through it, so that it is connected."""
        self._device.use()
        group = self._make(self._store, self._rank)
        self._group = group
        if self._why:
            self.abort(self._why)
        word = self._device.empty(1, torch.int32)
        if self._rank == 0:
            self._device.enqueue(lambda: word.fill_(1), word)
            await_event(self._device.waited(), "the first word")
        self._go([word], group.send if self._rank == 0 else group.recv)
        if int(word.cpu()) != 1:
            raise LinkBroken("the first word of a process group came wrong")

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """See ``Carrier``."""
        self._go(tensors, self._group.send)

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """See ``Carrier``."""
        self._go(tensors, self._group.recv)

    def on_message(self, said: list[Any]) -> None:
        """See ``Carrier``: keys of the store."""
        self._store.received(str(said[0]), bytes(said[1]))

    def abort(self, why: str) -> None:
        """See ``Carrier``."""
        self._why = why
        self._store.end(why)
        if self._group is not None:
            self._group.abort()

    def _go(self, tensors: Sequence[torch.Tensor], verb: Callable[..., Any]) -> None:
        if self._why:
            raise LinkBroken(self._why)
        self._device.use()
        with self._stream.current():
            for tensor in tensors:
                verb([bytes_of(tensor)], 1 - self._rank, 0).wait()
        await_event(self._stream.record(), "what was sent or received on its stream")
        if self._why:  # what was stopped may look as if it had ended well
            raise LinkBroken(self._why)


class Mapped:
    """CUDA IPC as torch has it: memory of one process, opened in another one."""

    def export(self, tensor: torch.Tensor) -> list[Any]:
        """What the other process needs to open it; plain values."""
        from torch.multiprocessing.reductions import reduce_tensor  # noqa: PLC0415 - it changes how tensors are pickled

        _, (_, size, stride, offset, _, dtype, device, *rest) = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return [list(size), list(stride), offset, str(dtype).removeprefix("torch."), uuid, *rest]

    def open(self, said: list[Any]) -> torch.Tensor:
        """The other process's tensor, while it keeps it."""
        from torch.multiprocessing.reductions import rebuild_cuda_tensor  # noqa: PLC0415 - see above

        size, stride, offset, dtype, uuid, *rest = said
        seen = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
        device, kind = seen.index(uuid), getattr(torch, dtype)
        found = rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
            torch.Tensor, torch.Size(size), tuple(stride), offset, torch.UntypedStorage, kind, device, *rest
        )
        assert isinstance(found, torch.Tensor)
        return found


class MappedCarrier(Carrier):
    """By memory that the receiver opens and copies; the sender's is its own again once the receiver says so."""

    def __init__(self, tell: Callable[[list[Any]], None], mapped: Mapped, *, sends: bool, place: str) -> None:
        """See ``GroupCarrier``."""
        super().__init__(place)
        self._tell = tell
        self._mapped = mapped
        self._sends = sends
        self._device = device_at(place)
        self._said: SimpleQueue[list[Any]] = SimpleQueue()
        self._why = ""

    def build(self) -> None:
        """See ``Carrier``: one word is copied."""
        self._device.use()
        word = self._device.empty(1, torch.int32)
        if self._sends:
            self._device.enqueue(lambda: word.fill_(1), word)
            await_event(self._device.waited(), "the first word")
            self.send([word])
            return
        self.receive([word])
        if int(word.cpu()) != 1:
            raise LinkBroken("the first word by CUDA IPC came wrong")

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """See ``Carrier``."""
        for some in batched(tensors, _HANDLES):
            self._tell([self._mapped.export(tensor) for tensor in some])
            if why := self._next():
                raise LinkBroken(f"the peer could not open memory of this GPU: {why[0]}")

    def receive(self, tensors: Sequence[torch.Tensor]) -> None:
        """See ``Carrier``."""
        self._device.use()
        for some in batched(tensors, _HANDLES):
            said = self._next()
            try:
                self._copy(some, [self._mapped.open(each) for each in said])
            except Exception as error:
                self._tell([repr(error)[:200]])
                raise
            self._tell([])

    def _copy(self, tensors: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
        with self._device.beside():
            for tensor, source in zip(tensors, sources, strict=True):
                self._device.enqueue(functools.partial(tensor.copy_, source), tensor)
            event = self._device.waited()
        await_event(event, "the copy from the peer's memory")

    def on_message(self, said: list[Any]) -> None:
        """See ``Carrier``."""
        self._said.put(said)

    def abort(self, why: str) -> None:
        """See ``Carrier``."""
        self._why = why
        self._said.put([])

    def _next(self) -> list[Any]:
        if not self._why:
            try:
                said = self._said.get(timeout=_ANSWER)  # the end of the link puts something there, too
            except Empty:
                raise LinkBroken(f"the peer has not said in {_ANSWER:g} s that it has copied from this GPU") from None
            if not self._why:
                return said
        raise LinkBroken(self._why)


def nccl(store: LinkStore, rank: int) -> Any:
    """A process group of NCCL's."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=BUILD_TIMEOUT)  # noqa: SLF001 - torch has no other name for it
    return dist.ProcessGroupNCCL(store, rank, 2, options)


def carrier(way: str, tell: Callable[[list[Any]], None], *, sends: bool) -> Carrier:
    """One end of the way "nccl" or "ipc", for the GPU that is current in this process."""
    place = f"cuda:{torch.cuda.current_device()}"
    if way == "nccl":
        return GroupCarrier(nccl, tell, sends=sends, place=place)
    return MappedCarrier(tell, Mapped(), sends=sends, place=place)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in host memory that the device can write by itself (pinned), once it is there."""
    place = place_of(tensor)
    if place == HOST:
        return tensor
    device = device_at(place)
    row = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda, device="cpu")
    with device.beside():
        device.enqueue(lambda: row.copy_(tensor, non_blocking=True), row)
        event = device.waited()
    await_event(event, "the copy to host memory")
    return row


def failure(error: BaseException) -> CollectiveError:
    """Whatever a carrier raised, as an error of the stream."""
    return error if isinstance(error, CollectiveError) else LinkBroken(f"between GPUs: {type(error).__name__}: {error}")
