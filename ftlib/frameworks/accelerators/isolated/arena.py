"""Memory of GPUs that is shared with children: blocks of ``cudaMalloc`` of our own, which each child opens once.

torch's own memory is not shared: its allocator frees and moves it as it likes, segments that it can extend have no handle that
an older driver opens, and what is sent to a process that is killed stays reserved.

A block is given back to the driver only once no child is left (``trim``): to free it while another process has it open is
undefined (cudaFree, cudaIpcCloseMemHandle in NVIDIA's documentation of the runtime). So its size is that of the largest moment.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from .cudart import OUT_OF_MEMORY, CudaError, Cudart
from .memory import Memory, Span
from .records import Block

_LEAST = 64 << 20
"""Bytes of a block at least."""
_PAGE = 2 << 20
"""Blocks have a multiple of this: ``cudaMalloc`` puts smaller ones together in one, and a handle opens all of it."""
_ALIGNED = 512
"""Of a row's address, as with torch's allocator."""

Ended = Callable[[], bool]
"""Whether what had been enqueued has ended; never blocks."""
Mark = Callable[[], Ended]
"""Marks what is enqueued now."""


class Lent:
    """Memory on a GPU, for torch to wrap. Kept alive by the tensor, and by nothing else."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.address, self.nbytes = address, nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """See the documentation of numba."""
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 2}


def wrap(lent: Lent, device: int) -> torch.Tensor:
    """A tensor of bytes."""
    return torch.as_tensor(lent, device=torch.device("cuda", device))


def streams(device: int) -> Mark:
    """Marks the stream that is current here, and the one that is where and when the mark is made."""
    first = torch.cuda.current_stream(device)

    def mark() -> Ended:
        events = []
        for stream in {first, torch.cuda.current_stream(device)}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(stream)
            events.append(event)
        return lambda: all(event.query() for event in events)  # type: ignore[no-untyped-call]

    return mark


class _Block:
    """One block, and its holes: what is not lent, as (offset, bytes), by offset. With the arena's lock."""

    def __init__(self, number: int, device: int, address: int, nbytes: int, handle: bytes) -> None:
        self.number, self.device, self.address, self.nbytes = number, device, address, nbytes
        self.record = Block(number, device, nbytes, handle)
        self.alive = True
        """False once it was given back."""
        self._holes = [(0, nbytes)]

    @property
    def unused(self) -> bool:
        return self._holes == [(0, self.nbytes)]

    def take(self, nbytes: int) -> int | None:
        """The offset of so many bytes, which are lent from now on; None if there are none in one piece."""
        for index, (offset, size) in enumerate(self._holes):
            if size >= nbytes:
                self._holes[index : index + 1] = [(offset + nbytes, size - nbytes)] if size > nbytes else []
                return offset
        return None

    def give(self, offset: int, nbytes: int) -> None:
        """They are lent no more."""
        index = bisect.bisect(self._holes, (offset, 0))
        after = self._holes[index] if index < len(self._holes) else (-1, 0)
        before = self._holes[index - 1] if index else (-1, 0)
        first, last, begin, end = index, index, offset, offset + nbytes
        if before[0] + before[1] == offset and before[1]:
            first, begin = index - 1, before[0]
        if after[0] == end:
            last, end = index + 1, after[0] + after[1]
        self._holes[first:last] = [(begin, end - begin)]

    def end(self) -> None:
        """It is given back."""
        self.alive = False


class CudaArena(Memory):
    """See ``Memory``. Any thread."""

    def __init__(
        self,
        load: Callable[[], Cudart],
        wrap: Callable[[Lent, int], torch.Tensor] = wrap,
        marking: Callable[[int], Mark] = streams,
        relieve: Callable[[], None] = torch.cuda.empty_cache,
    ) -> None:
        """``load``: returns the library, when it is first needed. ``wrap``: makes a tensor of memory.

        ``marking``: called as a row is lent; what it returns marks, as the row is freed, what was enqueued on it. ``relieve``:
        makes others give back memory that they do not use.
        """
        self._load, self._wrap, self._marking, self._relieve = load, wrap, marking, relieve
        self._cudart: Cudart | None = None
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._blocks: tuple[_Block, ...] = ()
        """By address. Replaced as a whole: ``find`` takes no lock."""
        self._left: deque[tuple[_Block, int, int, Ended]] = deque()
        """Freed rows on which something may be under way. A finalizer adds to it, at any moment, so it has no lock."""

    @property
    def nbytes(self) -> int:
        """Of all blocks."""
        return sum(block.nbytes for block in self._blocks)

    def row(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Memory``. torch.OutOfMemoryError if the GPU has none left."""
        device, nbytes = int(place.partition(":")[2] or 0), count * dtype.itemsize
        size = -(-max(nbytes, 1) // _ALIGNED) * _ALIGNED
        mark = self._marking(device)
        with self._lock:
            self._sweep()
            block, offset = self._fit(device, size) or self._grow(device, size)
        lent = Lent(block.address + offset, nbytes)
        left = functools.partial(self._leave, block, offset, size, mark)
        weakref.finalize(lent, left).atexit = False
        return self._wrap(lent, device).view(dtype)

    def start(self, place: str) -> None:
        """Have a first block: where that fails, nothing else will work."""
        self.row(place, 1, torch.uint8)

    def find(self, tensor: torch.Tensor) -> Span | None:
        """See ``Memory``."""
        address, known = tensor.data_ptr(), self._blocks
        index = bisect.bisect_right(known, address, key=_address) - 1
        if index < 0 or address + tensor.nbytes > known[index].address + known[index].nbytes:
            return None
        block = known[index]
        return Span(block.number, address - block.address, block, block.record)

    def trim(self) -> None:
        """See ``Memory``. A block of which a row is still in use stays."""
        with self._lock:
            self._sweep()
            kept = []
            for block in self._blocks:
                if block.unused:
                    assert self._cudart is not None
                    block.end()
                    self._cudart.free(block.device, block.address)
                else:
                    kept.append(block)
            self._blocks = tuple(kept)

    def _leave(self, block: _Block, offset: int, nbytes: int, mark: Mark) -> None:
        """A row is freed: on any thread, at any moment."""
        try:
            ended = mark()
        except Exception:  # noqa: BLE001 - the device has failed: what was enqueued there never ends as far as we know
            return
        self._left.append((block, offset, nbytes, ended))

    # --- with the lock -------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Take back what is not used by the device any more."""
        for _ in range(len(self._left)):
            block, offset, nbytes, ended = self._left.popleft()
            if _over(ended):
                block.give(offset, nbytes)
            else:
                self._left.append((block, offset, nbytes, ended))

    def _fit(self, device: int, nbytes: int) -> tuple[_Block, int] | None:
        for block in self._blocks:
            if block.device == device and (offset := block.take(nbytes)) is not None:
                return block, offset
        return None

    def _grow(self, device: int, nbytes: int) -> tuple[_Block, int]:
        """A row in a new block."""
        if self._cudart is None:
            self._cudart = self._load()
        cudart, size = self._cudart, -(-max(nbytes, _LEAST) // _PAGE) * _PAGE
        address = self._allocate(cudart, device, size)
        try:
            handle = cudart.export(device, address)
        except BaseException:
            cudart.free(device, address)
            raise
        block = _Block(next(self._numbers), device, address, size, handle)
        self._blocks = tuple(sorted((*self._blocks, block), key=_address))
        offset = block.take(nbytes)
        assert offset is not None
        return block, offset

    def _allocate(self, cudart: Cudart, device: int, nbytes: int) -> int:
        try:
            return cudart.malloc(device, nbytes)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        self._relieve()  # torch keeps memory that nobody uses
        try:
            return cudart.malloc(device, nbytes)
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            text = f"no memory for staging that is shared with the accelerator's process: {error}"
            raise torch.OutOfMemoryError(text) from None


def _address(block: _Block) -> int:
    return block.address


def _over(ended: Ended) -> bool:
    try:
        return ended()
    except Exception:  # noqa: BLE001 - the device has failed
        return False
