"""NCCL's functions, by ``accelerators.nccl.library`` alone, without any group of ftlib's: what workers are told to do."""

from __future__ import annotations

import time
from typing import Any

import torch

from ftlib.common.devices import Event, device_at
from ftlib.frameworks.accelerators.nccl.library import Library, load
from ftlib.frameworks.accelerators.nccl.results import Result
from ftlib.frameworks.accelerators.nccl.structures import REDUCTIONS, TYPES
from tests.frameworks.crew import Worker
from tests.harness.basics import eventually

ELEMENTS = 1_000_000
SPUN = 0.05
"""Seconds after which kernels that were launched surely spin."""
LOOK = 0.0002
LIMIT = 30.0
REHEARSED = "rehearsal:0"
_libraries: list[tuple[Library, Any]] = []
"""That of this process, once it was opened, and what it needs to be kept."""


class Communicator:
    """One of NCCL's, on a stream of its own. Used by one thread."""

    def __init__(self, worker: Worker, identity: bytes, size: int, rank: int) -> None:
        """Waits until it is built."""
        self.rank = rank
        self._library = _opened(worker)
        self._device = device_at(worker.place or REHEARSED)
        self._device.use()
        self._stream = self._device.side_stream()
        self._tensor: torch.Tensor | None = None
        self._comm, _ = self._library.init_rank(identity, size, rank)
        self.until_done()

    def launch(self, tensor: torch.Tensor) -> Event:
        """Launch an allreduce; a mark that was made as soon as NCCL's function had returned."""
        self._tensor = tensor  # it must outlive the kernel
        self._stream.follow(self._device.record())  # as the tensor is filled there
        kind, how = TYPES[tensor.dtype], REDUCTIONS["SUM"]
        self._library.group_start()
        self._library.all_reduce(tensor.data_ptr(), tensor.numel(), kind, how, self._comm, self._stream.handle)
        self._library.group_end()
        return self._stream.record()

    def mark(self) -> Event:
        """The end of all that was launched."""
        return self._stream.record()

    def until_done(self) -> None:
        """Wait until NCCL has done what it was asked for last."""
        eventually(lambda: self._library.async_error(self._comm) is not Result.IN_PROGRESS, "NCCL's answer", LIMIT)

    def until_ended(self) -> None:
        """Wait until nothing that was launched runs."""
        mark, until = self.mark(), time.monotonic() + LIMIT
        while not mark.query():
            assert time.monotonic() < until, "operations do not end"
            time.sleep(LOOK)  # between two looks

    def revoke(self) -> float:
        """Seconds until it is done, and all that was launched has ended."""
        began = time.monotonic()
        self._library.revoke(self._comm)
        self.until_done()
        self.until_ended()
        return time.monotonic() - began

    def abort(self) -> float:
        """Seconds."""
        began = time.monotonic()
        self._library.abort(self._comm)
        return time.monotonic() - began


_made: list[Communicator] = []
"""Of this process, at most one."""


def _opened(worker: Worker) -> Library:
    """NCCL, or what stands for it in a rehearsal."""
    if not _libraries:
        fake = getattr(worker.framework, "nccl", None)
        if fake is None:
            _libraries.append((load(), None))
        else:
            from tests.frameworks.nccl.fake import Functions

            functions = Functions(fake)
            _libraries.append((Library(functions), functions))
    return _libraries[0][0]


def identify(worker: Worker) -> bytes:
    """An id to meet at."""
    return _opened(worker).unique_id()


def connect(worker: Worker, identity: bytes, size: int, rank: int) -> float:
    """Build a communicator and use it once; the seconds that took."""
    began = time.monotonic()
    _made[:] = [Communicator(worker, identity, size, rank)]
    tensor = worker.put(torch.ones(ELEMENTS))
    _made[0].launch(tensor)
    _made[0].until_done()
    _made[0].until_ended()
    assert float(tensor[-1]) == size
    return time.monotonic() - began


def launch_late(worker: Worker) -> tuple[bool, bool]:
    """All but rank 0 launch what then spins.

    Whether a mark said that it had ended which was made as the launch returned; and one that was made after it was done.
    """
    made = _made[0]
    if made.rank == 0:
        time.sleep(SPUN)  # the others look at their marks first
        return False, False
    early = made.launch(worker.put(torch.ones(ELEMENTS)))
    made.until_done()
    right = made.mark()
    time.sleep(SPUN)  # a mark that is early has been reached by then
    return early.query(), right.query()


def end(_: Worker, how: str) -> float:
    """Seconds."""
    made = _made[0]
    took = made.revoke() if how == "revoke" else made.abort()
    if how == "abort":
        _made.clear()
    return took
