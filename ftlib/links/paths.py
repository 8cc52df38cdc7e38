"""How bytes get from one end of a link to the other. ``TcpPath``: the stream's own socket. ``ring``: memory of both ends.

A path never waits: it takes and gives what it can now. ``refresh`` is called when its descriptor is readable, then ``read``
until that gives nothing; so a path need not ask the kernel to learn that there is no more.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Protocol

_TCP_INFO = struct.Struct("8B13I")
_RETRANSMITS, _PROBES, _LAST_DATA_RECEIVED, _LAST_ACK_RECEIVED = 2, 3, 19, 20
"""Fields of the kernel's ``struct tcp_info``: how often it has sent again, or asked a peer that takes nothing, without an
answer; and how many milliseconds ago anything came.
"""
_TOGETHER = 1 << 19
"""Bytes of a long payload that are read together."""


class Path(Protocol):
    """See the module."""

    name: str
    sealed: bool
    """Whether others could read or change what passes."""
    quick: bool
    """Whether to ask for news costs less than to be woken for them."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is news."""
        ...

    def refresh(self) -> bool:
        """There may be news; whether there is room again for a writer. Raises OSError if the peer breaks the rules."""
        ...

    def read(self, into: Sequence[memoryview]) -> int:
        """Fill the beginning of ``into``; 0: nothing is there now. Raises EOFError at the end, OSError if the path broke."""
        ...

    def write(self, views: Sequence[memoryview]) -> int:
        """Bytes taken. Fewer than offered: there is no room now. Raises OSError if the path broke."""
        ...

    def silent(self) -> float:
        """For how many seconds the peer's host has not answered what waits for an answer; 0.0 if nothing does."""
        ...

    def unsent(self) -> bool:
        """Whether the peer's host may not have everything yet."""
        ...

    def close(self) -> None:
        """Idempotent."""


class TcpPath:
    """The stream's socket."""

    name = "tcp"
    sealed = True
    quick = False

    def __init__(self, sock: socket.socket, link_timeout: float) -> None:
        """``link_timeout``: seconds after which a link without answers is broken; the kernel asks an idle peer that often."""
        self._sock = sock
        self._dry = False
        self._together = 1
        sock.setblocking(False)
        self._tcp = sock.family in (socket.AF_INET, socket.AF_INET6)
        if self._tcp:
            idle = max(1, int(link_timeout / 4))
            for option, value in (
                (socket.TCP_NODELAY, 1),
                (socket.TCP_KEEPIDLE, idle),
                (socket.TCP_KEEPINTVL, 1),
                (socket.TCP_KEEPCNT, 100),  # the link's own time-out comes first
            ):
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def fileno(self) -> int:
        """See ``Path``."""
        return self._sock.fileno()

    def refresh(self) -> bool:
        """See ``Path``. Of room the loop hears."""
        self._dry = False
        return False

    def read(self, into: Sequence[memoryview]) -> int:
        """See ``Path``."""
        if self._dry:
            return 0
        try:
            count = self._sock.recv_into(into[0]) if len(into) == 1 else self._sock.recvmsg_into(into)[0]
        except (BlockingIOError, InterruptedError):
            self._dry = True
            return 0
        if not count:
            raise EOFError
        left = sum(map(len, into)) - count
        self._dry = left > 0  # epoll says when there is more
        if left > _TOGETHER or self._together > 1:
            self._wake_at(_TOGETHER if left > _TOGETHER else 1)
        return count

    def _wake_at(self, together: int) -> None:
        """In a long payload there is news only once so many bytes are here, or the end: each waking costs a thread."""
        if self._tcp and together != self._together:
            self._together = together
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, together)

    def write(self, views: Sequence[memoryview]) -> int:
        """See ``Path``."""
        try:
            return self._sock.sendmsg(views)
        except (BlockingIOError, InterruptedError):
            return 0

    def silent(self) -> float:
        """See ``Path``. A peer that takes nothing, but answers when asked, lives: so the window's size does not count."""
        if not self._tcp:
            return 0.0
        try:
            info = _TCP_INFO.unpack(self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
        except OSError:
            return 0.0  # closed meanwhile
        if info[_RETRANSMITS] == 0 and info[_PROBES] < 2:  # one question may be under way
            return 0.0
        return float(min(info[_LAST_DATA_RECEIVED], info[_LAST_ACK_RECEIVED])) / 1000.0

    def unsent(self) -> bool:
        """See ``Path``."""
        return unsent(self._sock)

    def close(self) -> None:
        """See ``Path``."""
        self._sock.close()


def unsent(sock: socket.socket) -> bool:
    """Whether bytes wait in the kernel that the other host has not acknowledged."""
    try:
        return any(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    except (OSError, ValueError):
        return False
