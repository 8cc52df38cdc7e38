"""A relay in front of a server, on one thread: what it lets through is a test's choice."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from typing import Self


class Relay:
    """Listens on ``port`` and hands on to ``target``, a port of this machine. Use as a context manager."""

    def __init__(self, target: int, *, most: int | None = None, keep: bool = False, lose: bytes = b"") -> None:
        """Listens at once; nothing is accepted before it is entered.

        ``most``: bytes of answers, after which their connection is cut. ``keep``: what clients get is in ``kept``.
        ``lose``: the first HTTP request with these bytes succeeds, and instead of the answer its connection is closed.
        """
        self._target = target
        self._left = most
        self._lose = lose
        self._silent: socket.socket | None = None
        """The connection to the server whose next answer is lost."""
        self.lost = threading.Event()
        self.kept: bytearray | None = bytearray() if keep else None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._other: dict[socket.socket, socket.socket] = {}
        self._towards_clients: set[socket.socket] = set()
        self._losing = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    @contextlib.contextmanager
    def losing_answers(self) -> Iterator[None]:
        """Meanwhile what a client sends arrives, and instead of the answer its connection is closed."""
        self._losing.set()
        try:
            yield
        finally:
            self._losing.clear()

    def __enter__(self) -> Self:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for sock in [*self._other, self._listener]:
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.05):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._listener:
                    self._accept()
                elif sock in self._other:
                    self._pass_on(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.settimeout(5)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)
        self._towards_clients.add(server)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 16)
            answer = sock in self._towards_clients
            if answer and self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            if self._lose and not answer and self._lose in data and self._silent is None:
                self._silent = self._other[sock]
            if sock is self._silent and data.startswith(b"HTTP/1.1 2") and not self.lost.is_set():
                self.lost.set()
            elif data and not (self._losing.is_set() and answer):
                if answer and self.kept is not None:
                    self.kept += data  # before the client can have it
                self._other[sock].sendall(data)
                return
        except OSError:
            pass
        ends = (sock, self._other[sock])
        for end in ends:
            self._selector.unregister(end)
            self._towards_clients.discard(end)
            del self._other[end]
            end.close()
