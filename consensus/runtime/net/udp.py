"""Datagrams: small messages, each in one packet.

A message that fits an Ethernet frame is sent by UDP; on loopback, whose frames are large, up to 32 KiB. All others go by HTTP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from .names import Endpoint

NETWORK_LIMIT = 1400
"""Bytes in a datagram that crosses a network: below the usual MTU of 1500, with room for tunnels."""

LOOPBACK_LIMIT = 32 * 1024

_LARGEST = 65_536
_AT_ONCE = 64
"""The most datagrams read in one turn of the loop. Acks come in bursts, and a turn costs more than a packet."""


def fits(size: int, endpoint: Endpoint) -> bool:
    """Whether ``size`` bytes go to ``endpoint`` as one datagram."""
    return size <= (LOOPBACK_LIMIT if endpoint.loopback else NETWORK_LIMIT)


class Udp:
    """The UDP side of an agent. ``received(data, source)`` is called for each datagram, on the loop's thread."""

    def __init__(self, received: Callable[[bytes, tuple[Any, ...]], None], lost: Callable[[OSError | None], None]) -> None:
        """``lost`` is called with errors, and with None for a datagram that no socket of this family can send."""
        self._received = received
        self._lost = lost
        self._socket: socket.socket | None = None

    def open(self, sock: socket.socket) -> None:
        """Read from the bound, non-blocking ``sock`` until ``close``; it stays its owner's."""
        self._socket = sock
        asyncio.get_running_loop().add_reader(sock.fileno(), self._read)

    def send(self, data: bytes, endpoint: Endpoint) -> None:
        """Send one datagram; it may get lost."""
        sock = self._socket
        if sock is None:
            return
        target = endpoint.sockaddr
        if endpoint.family != sock.family:
            if sock.family != socket.AF_INET6:
                self._lost(None)
                return
            target = (f"::ffff:{target[0]}", target[1])
        self.reply(data, target)

    def reply(self, data: bytes, source: tuple[Any, ...]) -> None:
        """Send one datagram to where another one came from."""
        if self._socket is not None:
            try:
                self._socket.sendto(data, source)
            except OSError as error:  # including a full buffer
                self._lost(error)

    def close(self) -> None:
        """Stop; idempotent."""
        sock, self._socket = self._socket, None
        if sock is not None:
            asyncio.get_running_loop().remove_reader(sock.fileno())

    def _read(self) -> None:
        for _ in range(_AT_ONCE):
            sock = self._socket
            if sock is None:  # closed by a received message
                return
            try:
                data, source = sock.recvfrom(_LARGEST)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                self._lost(error)
                return
            self._received(data, source)
