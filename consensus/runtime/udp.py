"""Datagrams: small messages in one packet each, or not at all.

What fits an Ethernet frame goes this way; on loopback, whose frames are large, up to 32 KiB. The rest goes by HTTP.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from .names import Endpoint

__all__ = ["LOOPBACK_LIMIT", "NETWORK_LIMIT", "Udp", "fits"]

NETWORK_LIMIT = 1400
"""Bytes in a datagram that crosses a network: below the usual MTU of 1500, with room for tunnels."""

LOOPBACK_LIMIT = 32 * 1024


def fits(size: int, endpoint: Endpoint) -> bool:
    """Whether ``size`` bytes go to ``endpoint`` as one datagram."""
    return size <= (LOOPBACK_LIMIT if endpoint.loopback else NETWORK_LIMIT)


class Udp(asyncio.DatagramProtocol):
    """The UDP side of an agent. ``received(data, source)`` is called for each datagram, on the loop's thread."""

    def __init__(self, received: Callable[[bytes, tuple[Any, ...]], None], lost: Callable[[OSError | None], None]) -> None:
        """``lost`` is told of send errors, and (None) of datagrams that no socket of this family can send."""
        self._received = received
        self._lost = lost
        self._transport: asyncio.DatagramTransport | None = None
        self._family = socket.AF_INET

    async def open(self, sock: socket.socket) -> None:
        """Take over the bound ``sock``."""
        loop = asyncio.get_running_loop()
        self._family = socket.AddressFamily(sock.family)
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=sock)

    def send(self, data: bytes, endpoint: Endpoint) -> None:
        """Send one datagram; it may get lost."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        target = endpoint.sockaddr
        if endpoint.family != self._family:
            if self._family != socket.AF_INET6:
                self._lost(None)
                return
            target = (f"::ffff:{target[0]}", target[1])
        transport.sendto(data, target)

    def close(self) -> None:
        """Stop; idempotent."""
        if self._transport is not None:
            self._transport.abort()

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """asyncio: one datagram."""
        self._received(data, addr)

    def error_received(self, exc: Exception) -> None:
        """asyncio: a send or receive failed."""
        self._lost(exc if isinstance(exc, OSError) else OSError(str(exc)))
