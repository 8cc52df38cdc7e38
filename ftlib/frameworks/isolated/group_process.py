"""A child that has a group, as the training process sees it: its orders, and the operations that are under way there."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

import torch

from ftlib.common.memory import bytes_of
from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind, Work

from .child_process import ChildProcess
from .records import Build, Close, Ended, Packed, Record, Run, Segment, Warm, carried, unpack
from .segments import Segments

_MOST = 1024
"""Collectives under way at a time."""
_CROWD = 100
"""Operations under way that make it answer one look later: each has a thread there, and it answers when it has its turn."""
_LATER = 1.0
"""Seconds from the time-out of operations until a collective that waits for room gives up: their own errors name ranks."""
_CUT = 0.02
"""Seconds for a child to cut its group's connections, and for what is under way there to end; then it is killed at once."""
_REST = 0.3
"""Seconds until it is killed otherwise. The end of a process takes a processor for milliseconds: first others need that."""
_TARGETS = frozenset(OperationKind) - {OperationKind.SEND}
"""Operations that change their tensor."""
_TRANSFERS = frozenset({OperationKind.SEND, OperationKind.RECV})
"""Operations that never wait for room: the next one may be what lets those end that are under way."""

Attend = Callable[[threading.Event, float], bool]
"""See ``ChildProcess.attend``."""


class IsolatedWork(Work):
    """An operation that a child carries out. ``buffer``: shared memory used instead of a tensor that is not."""

    __slots__ = ("_attend", "_buffer", "_error", "_gone", "_segments", "_tensor", "number")

    def __init__(
        self, number: int, operation: Operation, buffer: torch.Tensor | None, segments: Segments, attend: Attend
    ) -> None:
        self.number = number
        self._segments = segments
        self._attend = attend
        self._tensor = operation.tensor
        self._buffer = buffer
        self._gone = threading.Event()
        self._error: GroupError | None = None

    def wait(self, timeout: float) -> bool:
        """Block at most ``timeout`` seconds. An operation whose child was killed has ended once that is certainly gone."""
        if not self._gone.is_set() and not self._attend(self._gone, max(0.0, timeout)):
            return False
        if self._error is not None:
            raise self._error.afresh()
        return True

    def done(self) -> bool:
        """Whether the child said so, or is gone."""
        return self._gone.is_set()

    def finish(self, error: GroupError | None, *, changes: bool) -> None:
        """It has physically ended. Once; on the thread that heard so from the child."""
        self._error = error
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            if changes and error is None:
                _as_bytes(self._tensor).copy_(buffer[: self._tensor.nbytes])
            self._segments.give_back(buffer)
        self._gone.set()


class GroupProcess(ChildProcess):
    """See ``ChildProcess``."""

    WORD = "the group's process"

    def __init__(
        self, sock: socket.socket, pid: int, pidfd: int, segments: Segments, lost: Callable[[str], None] = lambda _why: None
    ) -> None:
        """See ``ChildProcess``."""
        self._segments = segments
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[IsolatedWork, OperationKind]] = {}
        self._collectives = 0
        """So many of them are no transfers."""
        self._timeout = 0.0
        """That of the group's operations."""
        self._building: Callable[[Ended], None] | None = None
        self._blamed: tuple[int, ...] = ()
        """By its end: the own rank, once an operation ended well. What never worked is not to be built anew without a pause."""
        self._rank = -1
        self._quiet = threading.Event()
        """It was told to cut its connections, and nothing is under way any more."""
        super().__init__(sock, pid, pidfd, lost)

    def warm(self) -> None:
        """Nothing will come for a while, and then a group is to be there at once."""
        with self._lock:
            self._send(Warm())

    def build(self, spec: GroupSpec, host: str, built: Callable[[Ended], None]) -> None:
        """Have it build a group. ``built`` is called once, with what came of it: on the thread that listens.

        Where the child is gone it is called at once: a spare one may have ended since it was taken.
        """
        with self._lock:
            gone = self.gone.is_set()
            if not gone:
                self._building, self._rank, self._timeout = built, spec.rank, spec.timeout
            fine = not gone and self._send(Build(spec, host))
        if gone:
            built(Ended(0, f"{self.WORD} {self.pid} is gone: {self._why}", told=True))
        elif not fine:
            self._give_up("the process for the group does not take orders")

    def run(self, operation: Operation) -> IsolatedWork:
        """Begin an operation on a contiguous CPU tensor. It may have failed already.

        A collective waits until fewer than ``_MOST`` are under way. All ranks have them in one order, so they end without it.
        """
        kind, tensor = operation.kind, operation.tensor.detach()
        found, buffer = self._segments.find(tensor), None
        if found is None:
            buffer = self._segments.borrow(tensor.nbytes)
            if kind is not OperationKind.RECV:
                buffer[: tensor.nbytes].copy_(_as_bytes(tensor))
            found = self._segments.find(buffer)
            assert found is not None
        segment, offset = found
        dtype = tensor.dtype if kind is OperationKind.ALLREDUCE and carried(tensor.dtype) else torch.uint8
        count = tensor.nbytes // dtype.itemsize
        work = IsolatedWork(next(self._numbers), operation, buffer, self._segments, self.attend)
        record = Run(work.number, kind, operation.op, dtype, operation.peer, operation.tag, segment.number, offset, count)
        if kind not in _TRANSFERS:
            seconds = self._timeout + _LATER
            late = f"{_MOST} collectives are under way, as many as may be, and none has ended within {seconds:g} s"
            self._await_room(lambda: self._collectives < _MOST, seconds, late)
        with self._telling:
            with self._lock:
                if self._why:
                    error = GroupError(f"{self.WORD} {self.pid}: {self._why}", () if self._asked else self._blamed)
                    work.finish(error, changes=False)
                    return work
                self._pending[work.number] = work, kind
                self._collectives += kind not in _TRANSFERS
            given = self._give(segment.number, lambda: segment.alive, Segment(segment.number, segment.nbytes), segment.fd)
            fine = given and self._send_soon(record)
        if not fine:
            self._give_up("it does not take orders")
        return work

    def close(self, why: str) -> None:
        """Have it cut its group's connections: what is under way fails, here and at the peers. SIGKILL, if need be.

        Otherwise it is killed a moment later. Idempotent.
        """
        with self._lock:
            if self._why:
                return
            self._why, self._asked = why, True
            self._changed.notify_all()
            if not self._pending:
                self._quiet.set()
            fine = not self.gone.is_set() and self._send(Close())
        if fine:
            try:
                start_task("isolated-end", self._finish_off)
            except RuntimeError:  # no thread can be had: then it gets no time to cut its connections
                fine = False
        if not fine:
            self._give_up(why)

    def _finish_off(self) -> None:
        if self._quiet.wait(_CUT):
            self.gone.wait(_REST)
        self._give_up(self._why)

    # --- see ChildProcess ----------------------------------------------------------------------------------------------

    def _unpack(self, data: bytes) -> Record:
        return unpack(data)

    def _looks(self) -> int:
        return self.SILENT + len(self._pending) // _CROWD

    def _busy(self) -> bool:
        return bool(self._pending) or self._building is not None

    def _told(self, record: Packed) -> None:
        if not isinstance(record, Ended):
            return
        building, found = None, None
        with self._lock:
            if not record.number:
                building, self._building = self._building, None
            else:
                found = self._pending.pop(record.number, None)
                if found is not None and found[1] not in _TRANSFERS:
                    self._collectives -= 1
                    self._changed.notify()
                if not record.text:
                    self._blamed = (self._rank,)
                if self._why and not self._pending:
                    self._quiet.set()
        if building is not None:
            building(record)
        if found is not None:
            work, kind = found
            work.finish(GroupError(record.text, record.peers) if record.text else None, changes=kind in _TARGETS)

    def _bury(self) -> Callable[[str], None]:
        pending, self._pending, self._collectives = list(self._pending.values()), {}, 0
        building, self._building = self._building, None
        blamed = () if self._asked else self._blamed
        self._quiet.set()

        def finish(text: str) -> None:
            for work, _ in pending:
                work.finish(GroupError(text, blamed), changes=False)
            if building is not None:
                building(Ended(0, text, told=True))

        return finish


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return bytes_of(tensor.detach())
