"""Who comes before the HTTP side is up. A tether or a check may wait for a moment; anything else needs it at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from socket import MSG_PEEK, socket

from .fork import release_in_children

_PATIENT = (b"GET /tether ", b"GET /identity ")
"""How a request begins that asks only who is here; who sends it waits for ``liveness_connection.CHECK_TIMEOUT``."""
_MOST = 64
"""Connections that are kept; the kernel keeps some more."""


class EarlyAcceptor:
    """Accepts connections, looks at what they want, and keeps them. Everything here runs on the loop's thread."""

    def __init__(self, sock: socket, came: Callable[[bool], None]) -> None:
        """``sock`` listens, does not block, and stays its owner's. ``came(patient)``: told of everybody who wants something."""
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
        """Accept no more. The connections, which are the caller's now; nothing has been read from them. Idempotent."""
        loop = asyncio.get_running_loop()
        if self._open:  # else that is the server's by now
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
            except OSError:  # nobody is left, or who came has gone again
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
        else:  # gone again
            self._kept.remove(connection)
            connection.close()
