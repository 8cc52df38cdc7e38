"""Many connections of strangers to one port: as many as wanted at a time, each made anew as soon as it is closed.

with Crowd(address, 600): ...                      # in this process
python -m tests.consensus.crowd PORT 10000 1.0 2000     # in one of its own, until its standard input ends: a byte a second
                                                         # each, and 2000 new ones a second once all have come
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

from .peer import ROOT

_REQUEST = b"GET /status HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 4000
"""Never whole."""


class Crowd:
    """``size`` strangers, from ``with`` on. ``drip``: seconds from byte to byte that each of them sends; 0: none.

    ``pace``: of those that were hung up on so many come again a second. ``greeting``: what each sends as it comes, before that.
    """

    def __init__(
        self, address: tuple[str, int], size: int, drip: float = 0.0, pace: float = 1000.0, *, greeting: bytes = b""
    ) -> None:
        self._address = address
        self._size = size
        self._drip = drip
        self._pace = pace
        self._greeting = greeting
        self._selector = selectors.DefaultSelector()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="crowd")
        self._said: dict[socket.socket, int] = {}
        self.made = 0
        """Connections that were begun."""
        self.closed = 0
        """Connections that the other side closed."""
        self.greeted = 0
        """Connections that have sent their greeting."""

    @property
    def held(self) -> int:
        """Connections that are open, or on their way."""
        return len(self._said)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for sock in self._said:
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        began = time.monotonic()
        due = began + self._drip
        while not self._ended.is_set():
            allowed = self._size + self._pace * (time.monotonic() - began) - self.made
            for _ in range(min(200, self._size - len(self._said), int(allowed))):
                self._come()
            for key, events in self._selector.select(0.01):
                if events & selectors.EVENT_WRITE:
                    self._greet(key.fileobj)  # type: ignore[arg-type]
                else:
                    self._look(key.fileobj)  # type: ignore[arg-type]
            if self._drip and time.monotonic() >= due:
                due += self._drip
                for sock, said in self._said.items():
                    with contextlib.suppress(OSError):
                        self._said[sock] += sock.send(_REQUEST[said : said + 1])

    def _come(self) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        if sock.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            sock.close()
            return
        self.made += 1
        self._said[sock] = 0
        self._selector.register(sock, selectors.EVENT_READ | (selectors.EVENT_WRITE if self._greeting else 0))

    def _greet(self, sock: socket.socket) -> None:
        """It is connected, or was refused, which the next look shows."""
        self._selector.modify(sock, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            self.greeted += sock.send(self._greeting) > 0

    def _look(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            if sock.recv(100):
                return
        self.closed += 1
        self._selector.unregister(sock)
        del self._said[sock]
        sock.close()


@contextlib.contextmanager
def crowd_process(port: int, size: int, drip: float, pace: float = 1000.0) -> Iterator[None]:
    """A crowd in a process of its own, once all of it has come."""
    command = [sys.executable, "-m", "tests.consensus.crowd", *map(str, (port, size, drip, pace))]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()
            print("   ", process.stdout.read().strip())


if __name__ == "__main__":
    port, size, drip, pace = sys.argv[1:]
    with Crowd(("127.0.0.1", int(port)), int(size), float(drip), float(pace)) as crowd:
        while crowd.made < int(size):
            time.sleep(0.05)
        print("ready", flush=True)
        sys.stdin.read()
        print(f"{crowd.made} came, {crowd.closed} were hung up on", flush=True)
