"""The agent's end of the handoff socket, by which connections go to the training process that answers them.

That process takes none while something there keeps the interpreter's lock. The socket holds few of them; the others wait here,
and beyond that they are told to come again.
"""

from __future__ import annotations

import asyncio
import contextlib
import http
import pickle
import socket
from collections import deque
from collections.abc import Callable, Iterable

from ..net.sources import Request, refuse

_MOST = 128
"""The most connections that wait: each takes a descriptor of the agent's, which needs them for messages, too."""


class Handoff:
    """Hands connections over in the order in which they come. Everything here runs on the loop's thread."""

    def __init__(self, handoff: socket.socket, refused: Callable[[Request], None]) -> None:
        """``handoff``: not blocking when connections come, and closed by its owner. ``refused``: called for each answer 503."""
        self._socket = handoff
        self._refused = refused
        self._waiting: deque[tuple[socket.socket, Request]] = deque()

    def give(self, connection: socket.socket, request: Request) -> None:
        """Own ``connection`` until it is handed over."""
        if self._waiting:
            self._wait(connection, request)
        elif not self._sent(connection, request):
            self._wait(connection, request)
            asyncio.get_running_loop().add_writer(self._socket, self._go_on)

    def descriptors(self) -> Iterable[int]:
        """Of the connections that wait. Takes no lock."""
        return [connection.fileno() for connection, _ in list(self._waiting)]

    def close(self) -> None:
        """Close the connections that wait. Idempotent."""
        if self._waiting:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and watches nothing
                asyncio.get_running_loop().remove_writer(self._socket)
        for connection, _ in self._waiting:
            connection.close()
        self._waiting.clear()

    def _wait(self, connection: socket.socket, request: Request) -> None:
        if len(self._waiting) < _MOST:
            self._waiting.append((connection, request))
        else:
            self._refuse(connection, request, "this process does not answer for now; ask again\n")

    def _go_on(self) -> None:
        """The other side has taken some."""
        while self._waiting and self._sent(*self._waiting[0]):
            self._waiting.popleft()
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)

    def _sent(self, connection: socket.socket, request: Request) -> bool:
        """Whether it need not wait. Where it cannot be sent at all it is refused."""
        try:
            socket.send_fds(self._socket, [pickle.dumps(request)], [connection.fileno()])
        except BlockingIOError:
            return False
        except OSError as error:  # too many descriptors are on their way; or the other side has gone
            self._refuse(connection, request, f"{error.strerror}; ask again\n")
        connection.close()
        return True

    def _refuse(self, connection: socket.socket, request: Request, text: str) -> None:
        """The answer is short: it fits the connection's buffer."""
        self._refused(request)
        refuse(connection, request, http.HTTPStatus.SERVICE_UNAVAILABLE, text)
