"""Values between a training process and its own agent process, over a socket pair that only the two of them hold.

Pickle is safe here, and only here: nothing from the network reaches it undecoded.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

_HEAD = struct.Struct("<I")
SEND_TIMEOUT = 10.0
"""Seconds for the other process to take a value; it may be stopped. A local socket holds thousands of orders before that."""


class Pipe:
    """The end in a process with threads: any thread may send, one receives."""

    def __init__(self, sock: socket.socket, send_timeout: float = SEND_TIMEOUT) -> None:
        """``sock`` is blocking; this object owns it from here on."""
        seconds, rest = divmod(send_timeout, 1.0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        self._sock = sock
        self._stream = sock.makefile("rb")
        self._sending = threading.Lock()

    def fileno(self) -> int:
        """The descriptor, -1 once closed."""
        return self._sock.fileno()

    def send(self, value: object) -> bool:
        """Returns whether the value was handed to the kernel; False once the other end has gone.

        If the other end takes nothing for ``send_timeout``, the pipe is shut: both ends then see the end.
        """
        body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        data = _HEAD.pack(len(body)) + body
        with self._sending:
            try:
                self._sock.sendall(data)
            except OSError:  # including a timeout, which may have cut a value in two
                self.shut()
                return False
        return True

    def receive(self) -> Any:
        """The next value; raises EOFError when the other end has gone."""
        body = b""
        try:
            head = self._stream.read(_HEAD.size)
            size = _HEAD.unpack(head)[0] if len(head) == _HEAD.size else -1
            body = self._stream.read(size) if size >= 0 else b""
        except (OSError, ValueError):  # reset, or closed here
            size = -1
        if len(body) != size:
            raise EOFError("the other process has gone")
        return pickle.loads(body)  # noqa: S301 - from our own child

    def shut(self) -> None:
        """Wake the receiver; both ends then see the end."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        """Close the socket. Idempotent. Not while a thread receives: ``shut`` ends that."""
        self._stream.close()
        self._sock.close()


class LoopPipe(asyncio.Protocol):
    """The end in a process with an event loop. Sending never waits: values that the other end has not read are kept."""

    def __init__(self, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        """``received`` gets each value. ``lost`` is called once when the other end has gone, but not after ``close`` here."""
        self._received = received
        self._lost = lost
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._closing = False
        self._gone = asyncio.Event()

    async def open(self, sock: socket.socket) -> None:
        """Take over ``sock``."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)

    def send(self, value: object) -> None:
        """Send ``value``, or drop it if the other end is gone."""
        if self._transport is not None and not self._transport.is_closing():
            body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            self._transport.write(_HEAD.pack(len(body)) + body)

    async def close(self) -> None:
        """Close this end once the other has received everything. Idempotent."""
        self._closing = True
        if self._transport is not None:
            self._transport.close()
            await self._gone.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """asyncio: some bytes."""
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            end = _HEAD.size + _HEAD.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            value = pickle.loads(self._buffer[_HEAD.size : end])  # noqa: S301 - from our own parent
            del self._buffer[:end]
            self._received(value)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio gives it
        """asyncio: closed."""
        self._gone.set()
        if not self._closing:
            self._lost()
