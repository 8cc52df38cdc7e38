"""The training process's handle of one child: what it is told, what is under way there, and its end."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

import torch

from consensus import release_in_children
from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind, Work

from .records import LIMIT, Build, Close, Ended, Ping, Record, RecordError, Run, Segment, Warm, carried, unpack
from .segments import Segments

_MOST = 1024
"""Operations under way at a time."""
_LOOK = 0.2
"""Seconds between two looks at a child that has something under way."""
_SILENT = 4
"""Looks in a row at which a child that was pinged had said nothing, after which it hangs."""
_CUT = 0.02
"""Seconds for a child to cut its group's connections, and for what is under way there to end; then it is killed at once."""
_REST = 0.3
"""Seconds until it is killed otherwise. The end of a process takes a processor for milliseconds: first others need that."""
_TARGETS = frozenset({OperationKind.ALLREDUCE, OperationKind.BROADCAST, OperationKind.RECV})
"""Operations that change their tensor."""

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


class ChildProcess:
    """One child, from its fork until it is gone. Any thread may tell it something."""

    def __init__(
        self, sock: socket.socket, pid: int, pidfd: int, segments: Segments, lost: Callable[[str], None] = lambda _why: None
    ) -> None:
        """Takes ``sock`` and ``pidfd``. ``lost`` is called with the reason once it is gone though nobody had asked for that."""
        self.pid = pid
        self._lost = lost
        self._segments = segments
        self._sock, self._pidfd = sock, pidfd
        sock.setblocking(False)
        self._lock = threading.Lock()
        self._ear = threading.Lock()
        """Whoever holds it reads records. A thread that waits for an operation does so, if nobody else does."""
        self._poll = select.epoll(2)
        self._heard = 0
        """Records so far, give or take: only whether it stands still is looked at."""
        self._numbers = itertools.count(1)
        self._given: dict[int, Callable[[], bool]] = {}
        """Segments that it has, by number: whether each is still used."""
        self._pending: dict[int, tuple[IsolatedWork, bool]] = {}
        """With whether it changes its tensor."""
        self._building: Callable[[Ended], None] | None = None
        self._blamed: tuple[int, ...] = ()
        """By its end: the own rank, once an operation ended well. What never worked is not to be built anew without a pause."""
        self._rank = -1
        self._why = ""
        """Why it was killed, or is not to be used."""
        self._asked = False
        """Whether that was asked for, and nothing was wrong with it."""
        self._quiet = threading.Event()
        """It was told to cut its connections, and nothing is under way any more."""
        self.gone = threading.Event()
        """It has certainly ended: nothing writes into shared memory for it any more."""
        self._descriptors = descriptors = [sock.fileno(), pidfd, self._poll.fileno()]
        release_in_children(self, lambda: tuple(descriptors))
        threading.Thread(target=self._listen, name="ftlib-isolated", daemon=True).start()

    @property
    def usable(self) -> bool:
        """Whether it has neither ended nor been told to."""
        return not self._why

    def warm(self) -> None:
        """Nothing will come for a while, and then a group is to be there at once."""
        with self._lock:
            self._send(Warm())

    def build(self, spec: GroupSpec, host: str, built: Callable[[Ended], None]) -> None:
        """Have it build a group. ``built`` is called once, on the thread that listens, with what came of it."""
        with self._lock:
            self._building, self._rank = built, spec.rank
            fine = self._send(Build(spec, host))
        if not fine:
            self._give_up("the process for the group does not take orders")

    def run(self, operation: Operation) -> IsolatedWork:
        """Begin an operation on a contiguous CPU tensor. It may have failed already."""
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
        with self._lock:
            work = IsolatedWork(next(self._numbers), operation, buffer, self._segments, self.attend)
            record = Run(work.number, kind, operation.op, dtype, operation.peer, operation.tag, segment.number, offset, count)
            usable = self.usable and len(self._pending) < _MOST
            if usable:
                self._pending[work.number] = work, kind in _TARGETS
                if segment.number not in self._given:
                    self._given[segment.number] = lambda: segment.alive
                    usable = self._send(Segment(segment.number, segment.nbytes), segment.fd)
                    self._forget()
                usable = usable and self._send(record)
                why = "" if usable else "it does not take orders"
            else:
                why = self._why or f"{_MOST} operations are under way"
                blamed = () if self._asked else self._blamed
                work.finish(GroupError(f"the group's process {self.pid}: {why}", blamed), changes=False)
        if not usable:
            self._give_up(why)
        return work

    def attend(self, ended: threading.Event, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for ``ended``, which a record of the child's sets. True: it is set.

        The first thread that waits reads the records itself, which saves waking another one for each.
        """
        deadline = time.monotonic() + timeout
        if self._ear.acquire(blocking=False):
            try:
                if not self.gone.is_set():
                    self._listen_for(ended, deadline)
            finally:
                self._ear.release()
        return ended.wait(max(0.0, deadline - time.monotonic()))

    def kill(self, why: str) -> None:
        """SIGKILL, and do not wait. What is under way fails once the process is gone. Idempotent."""
        self._give_up(why, asked=True)

    def _give_up(self, why: str, *, asked: bool = False) -> None:
        with self._lock:
            self._asked = self._asked or (asked and not self._why)
            self._why = self._why or why
            if not self.gone.is_set():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self, why: str) -> None:
        """Have it cut its group's connections: what is under way fails, here and at the peers. SIGKILL, if need be.

        Otherwise it is killed a moment later. Idempotent.
        """
        with self._lock:
            if self._why:
                return
            self._why, self._asked = why, True
            if not self._pending:
                self._quiet.set()
            fine = not self.gone.is_set() and self._send(Close())
        if fine:
            start_task("isolated-end", self._finish_off)
        else:
            self._give_up(why)

    def _finish_off(self) -> None:
        if self._quiet.wait(_CUT):
            self.gone.wait(_REST)
        self._give_up(self._why)

    # --- the thread that listens ---------------------------------------------------------------------------------------

    def _listen_for(self, ended: threading.Event, deadline: float) -> None:
        """Read records until ``ended`` is set, the child is gone, or it is time. With ``_ear``."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        self._listen_here(0)
        try:
            while not ended.is_set() and (left := deadline - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(left * 1000)}
                while self._hear():
                    pass
                if self._pidfd in ready:
                    break
        except EOFError:
            pass
        finally:
            self._listen_here(select.EPOLLIN)

    def _listen_here(self, events: int) -> None:
        """What the thread whose work it is wakes up for."""
        with contextlib.suppress(FileNotFoundError):  # it has seen the end
            self._poll.modify(self._sock, events)

    def _listen(self) -> None:
        self._poll.register(self._sock, select.EPOLLIN)
        self._poll.register(self._pidfd, select.EPOLLIN)
        silent, heard, talks = 0, 0, True
        while True:
            ready = {fd for fd, _ in self._poll.poll(_LOOK)}
            if ready and talks and self._ear.acquire(blocking=False):  # else another thread reads, and misses no record
                try:
                    while self._hear():
                        pass
                except EOFError:
                    talks = False
                    self._poll.unregister(self._sock)
                    self._give_up("it has closed its end")  # and is about to be gone
                finally:
                    self._ear.release()
            if self._pidfd in ready:
                break
            if heard != self._heard:
                silent, heard = 0, self._heard
            if not ready:
                silent = self._look(silent)
        self._end()

    def _hear(self) -> bool:
        """One record. False where there is none now; EOFError at the end."""
        try:
            data = self._sock.recv(LIMIT + 1)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            raise EOFError
        self._heard += 1
        try:
            record = unpack(data)
        except RecordError as error:
            self._give_up(f"it talks nonsense ({error})")
        else:
            if isinstance(record, Ended):
                self._ended(record)
        return True

    def _ended(self, ended: Ended) -> None:
        with self._lock:
            if not ended.number:
                building, self._building = self._building, None
                work, changes = None, False
            else:
                building = None
                work, changes = self._pending.pop(ended.number, (None, False))
                if not ended.text:
                    self._blamed = (self._rank,)
                if self._why and not self._pending:
                    self._quiet.set()
        if building is not None:
            building(ended)
        if work is not None:
            work.finish(GroupError(ended.text, ended.peers) if ended.text else None, changes=changes)

    def _look(self, silent: int) -> int:
        """Nothing came for a moment: how many such moments there were while something was under way and it was asked."""
        with self._lock:
            if not self._pending and self._building is None:
                return 0
            self._send(Ping())
        if silent + 1 > _SILENT:
            self._give_up(f"it has not answered for {silent * _LOOK:g} s")
        return silent + 1

    def _end(self) -> None:
        """It is gone: whatever is under way has ended."""
        with self._ear, self._lock:  # whoever listens instead stops, as the child is gone
            self._why = self._why or "it has ended"
            self.gone.set()
            pending, self._pending = list(self._pending.values()), {}
            building, self._building = self._building, None
            text, blamed = f"the group's process {self.pid} is gone: {self._why}", () if self._asked else self._blamed
            self._quiet.set()
            self._descriptors.clear()
            self._sock.close()
            self._poll.close()
            os.close(self._pidfd)
        for work, _ in pending:
            work.finish(GroupError(text, blamed), changes=False)
        if building is not None:
            building(Ended(0, text, told=True))
        if not self._asked:
            self._lost(text)

    # --- under the lock ------------------------------------------------------------------------------------------------

    def _send(self, record: Record, fd: int = -1) -> bool:
        """Whether it went out. The queue to a child that does not read is short."""
        try:
            if fd < 0:
                self._sock.send(record.pack())
            else:
                socket.send_fds(self._sock, [record.pack()], [fd])
        except OSError:
            return False
        return True

    def _forget(self) -> None:
        """Tell it which segments are not used any more."""
        for number in [number for number, used in self._given.items() if not used()]:
            del self._given[number]
            self._send(Segment(number, 0))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)
