"""A way to a server that takes so many bytes and then none, until it is let go."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self
from urllib.parse import urlsplit

from tests.harness.basics import TIMEOUT


class Narrow:
    """A context manager: a port that stands for the server at ``endpoint``. Threads end with their connections."""

    def __init__(self, endpoint: str, most: int) -> None:
        """``most``: bytes towards the server, of all connections together, before it stands still."""
        target = urlsplit(endpoint)
        self._target, self._most = (target.hostname, target.port), most
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self.full, self.go = threading.Event(), threading.Event()
        """It stands still; it shall go on."""

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, TIMEOUT)
                far.settimeout(None)
                with self._lock:
                    self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far), kwargs={"counted": True}, daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near), kwargs={"counted": False}, daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(16384):
                if counted:
                    self._count(len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def _count(self, size: int) -> None:
        with self._lock:
            self._most -= size
            stands = self._most < 0
        if stands and not self.go.is_set():
            self.full.set()
            self.go.wait(2 * TIMEOUT)
