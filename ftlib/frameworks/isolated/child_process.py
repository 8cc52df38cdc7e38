"""The training process's handle of one child: what it is told, whether it still answers, and its end.

What is asked of a child, and what it tells, is for its kind to say: see ``group_process``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from consensus import release_in_children
from ftlib.common.threads import LONGEST

from .records import LIMIT, Packed, Ping, RecordError, Segment

_LOOK = 0.2
"""Seconds between two looks at a child that has something under way."""
_PATIENCE = 1.0
"""Seconds for the child to read what it is told at once, where that does not fit into the queue to it; longer in proportion
where an answer is waited for longer (``_looks``)."""


class ChildProcess(ABC):
    """One child, from its fork until it is gone. Any thread may tell it something."""

    WORD: str
    """What the process is, in errors."""
    SILENT = 4
    """Looks in a row at which a child that was pinged had said nothing, after which it hangs."""

    def __init__(self, sock: socket.socket, pid: int, pidfd: int, lost: Callable[[str], None] = lambda _why: None) -> None:
        """Takes ``sock`` and ``pidfd``. ``lost`` is called with the reason once it is gone though nobody had asked for that.

        To be called last by a kind's own constructor: what the child tells may come at once.
        """
        self.pid = pid
        self._lost = lost
        self._sock, self._pidfd = sock, pidfd
        sock.setblocking(False)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        """Something has ended there, or the child is not to be used any more."""
        self._telling = threading.Lock()
        """Whoever holds it gives orders, which may have to wait for room. Taken before ``_lock``, which who listens needs."""
        self._reading = threading.Lock()
        """Whoever holds it reads records. A thread that waits for an operation does so, if nobody else does."""
        self._poll = select.epoll(2)
        self._received = 0
        """Records so far, give or take: only whether it stands still is looked at."""
        self._given: dict[int, Callable[[], bool]] = {}
        """Memory that it has, by number: whether each is still used. Guarded by ``_telling``."""
        self._why = ""
        """Why it was killed, or is not to be used."""
        self._asked = False
        """Whether that was asked for, and nothing was wrong with it."""
        self.gone = threading.Event()
        """It has certainly ended: nothing writes into shared memory for it any more."""
        self._descriptors = descriptors = [sock.fileno(), pidfd, self._poll.fileno()]
        release_in_children(self, lambda: tuple(descriptors))
        try:
            threading.Thread(target=self._listen, name="ftlib-isolated", daemon=True).start()
        except BaseException:  # no thread can be had: the numbers are anybody's once these are closed
            descriptors.clear()
            self._poll.close()
            raise

    @property
    def usable(self) -> bool:
        """Whether it has neither ended nor been told to."""
        return not self._why

    def attend(self, ended: threading.Event, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds for ``ended``, which a record of the child's sets. True: it is set.

        The first thread that waits reads the records itself, which saves waking another one for each.
        """
        deadline = time.monotonic() + timeout
        if self._reading.acquire(blocking=False):
            try:
                if not self.gone.is_set():
                    self._listen_for(ended, deadline)
            finally:
                self._reading.release()
        return ended.wait(max(0.0, deadline - time.monotonic()))

    def kill(self, why: str) -> None:
        """SIGKILL, and do not wait. What is under way fails once the process is gone. Idempotent."""
        self._give_up(why, asked=True)

    # --- for each kind -------------------------------------------------------------------------------------------------

    @abstractmethod
    def _unpack(self, data: bytes) -> Packed:
        """The record of these bytes. RecordError for anything else."""

    @abstractmethod
    def _told(self, record: Packed) -> None:
        """A record has come. On the thread that listens, without the lock."""

    @abstractmethod
    def _busy(self) -> bool:
        """Whether the child must answer, as something is under way there. With the lock."""

    def _looks(self) -> int:
        """``SILENT``, or more where what is under way may take longer. With the lock."""
        return self.SILENT

    @abstractmethod
    def _bury(self) -> Callable[[str], None]:
        """It is gone. With the lock: note so. What is returned is called without it, with the reason, and ends what waits."""

    def _give_up(self, why: str, *, asked: bool = False) -> None:
        with self._lock:
            self._asked = self._asked or (asked and not self._why)
            self._why = self._why or why
            self._changed.notify_all()
            if not self.gone.is_set():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def _await_room(self, free: Callable[[], bool], timeout: float, late: str) -> None:
        """Wait until ``free()``, called with the lock, or until it is not to be used any more.

        It is given up with ``late`` where that takes ``timeout`` seconds. Without ``_telling``: an order of another thread
        may be what ends the operations that are waited for.
        """
        with self._changed:
            fine = self._changed.wait_for(lambda: self._why or free(), min(timeout, LONGEST))
        if not fine:
            self._give_up(late)

    # --- the thread that listens ---------------------------------------------------------------------------------------

    def _listen_for(self, ended: threading.Event, deadline: float) -> None:
        """Read records until ``ended`` is set, the child is gone, or it is time. With ``_reading``."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        self._listen_here(0)
        try:
            while not ended.is_set() and (left := deadline - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(min(left, LONGEST) * 1000)}
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
        silent, received, talks = 0, 0, True
        while True:
            ready = {fd for fd, _ in self._poll.poll(_LOOK)}
            if ready and talks and self._reading.acquire(blocking=False):  # else another thread reads, and misses no record
                try:
                    while self._hear():
                        pass
                except EOFError:
                    talks = False
                    self._poll.unregister(self._sock)
                    self._give_up("it has closed its end")  # and is about to be gone
                finally:
                    self._reading.release()
            if self._pidfd in ready:
                break
            if received != self._received:
                silent, received = 0, self._received
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
        self._received += 1
        try:
            record = self._unpack(data)
        except RecordError as error:
            self._give_up(f"it talks nonsense ({error})")
        else:
            self._told(record)
        return True

    def _look(self, silent: int) -> int:
        """Nothing came for a moment: how many such moments there were while something was under way and it was asked."""
        with self._lock:
            if not self._busy():
                return 0
            self._send(Ping())
            most = self._looks()
        if silent + 1 > most:
            self._give_up(f"it has not answered for {silent * _LOOK:g} s")
        return silent + 1

    def _end(self) -> None:
        """It is gone: whatever is under way has ended."""
        with self._reading, self._lock:  # whoever listens instead stops, as the child is gone
            self._why = self._why or "it has ended"
            self._changed.notify_all()
            self.gone.set()
            finish = self._bury()
            text = f"{self.WORD} {self.pid} is gone: {self._why}"
            self._descriptors.clear()
            self._sock.close()
            self._poll.close()
            os.close(self._pidfd)
        finish(text)
        if not self._asked:
            self._lost(text)

    # --- under the lock ------------------------------------------------------------------------------------------------

    def _send(self, record: Packed, fd: int = -1) -> bool:
        """Whether it went out. The queue to a child is short: see ``_send_soon``."""
        try:
            if fd < 0:
                self._sock.send(record.pack())
            else:
                socket.send_fds(self._sock, [record.pack()], [fd])
        except OSError:
            return False
        return True

    # --- with ``_telling``, and without the lock -----------------------------------------------------------------------

    def _send_soon(self, record: Packed, fd: int = -1) -> bool:
        """As ``_send``, where much is told at once: waits until the child has read some of it."""
        with self._lock:
            until = time.monotonic() + _PATIENCE * self._looks() / self.SILENT
        while True:
            with self._lock:
                if self.gone.is_set():
                    return False
                if self._send(record, fd):
                    return True
                poll = select.poll()
                poll.register(self._sock, select.POLLOUT)
            left = until - time.monotonic()
            # Should another descriptor have its number by now, the child is gone, which the next look sees.
            if left <= 0 or not any(events == select.POLLOUT for _, events in poll.poll(left * 1000)):
                return False

    def _give(self, number: int, used: Callable[[], bool], record: Packed, fd: int = -1) -> bool:
        """Have it share memory, by a record that is sent once. False if it cannot be told. ``used``: see ``_given``."""
        if number in self._given:
            return True
        self._given[number] = used
        return self._send_soon(record, fd) and self._forget()

    def _forget(self) -> bool:
        """Tell it which memory is not used any more. False if it cannot be told."""
        unused = [number for number, used in self._given.items() if not used()]
        for number in unused:
            del self._given[number]
        return all(self._send_soon(Segment(number, 0)) for number in unused)
