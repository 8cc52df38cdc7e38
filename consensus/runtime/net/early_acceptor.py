"""Connections before the HTTP side is up. A liveness connection or a check may wait a moment; others need HTTP at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from socket import MSG_PEEK, socket

from .fork import release_in_children

_PATIENT = (b"GET /tether ", b"GET /identity ")
"""Beginnings of requests that only ask who is here; their senders wait for ``liveness_connection.CHECK_TIMEOUT``."""
_MOST = 64
"""The most connections that are kept; the kernel keeps some more."""


class EarlyAcceptor:
    """Accepts connections, looks at their requests, and keeps them. Everything here runs on the loop's thread."""

    def __init__(self, sock: socket, came: Callable[[bool], None]) -> None:
        """``sock`` listens, does not block, and stays its owner's. ``came(patient)`` is called for each request."""
        self._sock = sock
        self._came = came
        self._kept = kept = list[socket]()
        self._open = False
        release_in_children(self, lambda: [connection.fileno() for connection in kept])

    def open(self) -> None:
        """Accept from now on."""
        self._open = True
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._accept)

    def close(self) -> list[socket]:
        """Accept no more. Returns the connections, which the caller now owns; nothing was read from them. Idempotent."""
        loop = asyncio.get_running_loop()
        if self._open:  # else the server reads the socket by now
            self._open = False
            loop.remove_reader(self._sock.fileno())
        kept = self._kept.copy()
        self._kept.clear()
        for connection in kept:
            loop.remove_reader(connection.fileno())
        return kept

    def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._kept) < _MOST:
            try:
                connection, _ = self._sock.accept()
            except OSError:  # no connection is left, or the next one is closed already
                return
            connection.setblocking(False)
            self._kept.append(connection)
            loop.add_reader(connection.fileno(), self._look, connection)
        loop.remove_reader(self._sock.fileno())
        self._came(False)

    def _look(self, connection: socket) -> None:
        asyncio.get_running_loop().remove_reader(connection.fileno())
        try:
            begins = connection.recv(max(map(len, _PATIENT)), MSG_PEEK)
        except OSError:
            begins = b""
        if begins:
            self._came(begins.startswith(_PATIENT))
        else:  # closed already
            self._kept.remove(connection)
            connection.close()
