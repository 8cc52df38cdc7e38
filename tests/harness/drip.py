"""A server that answers a byte at a time and never comes to an end: to be waited for so long, and no longer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.basics import TIMEOUT

_EVERY = 0.05


@contextmanager
def dripping(head: bytes = b"HTTP/1.1 200 OK\r\nX-Slow: ") -> Iterator[str]:
    """Its address. Each client gets ``head`` once it has asked, then bytes one by one, and has to hang up by itself in time."""
    tired = list[object]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):  # the server was closed
                while True:
                    client = server.accept()[0]
                    with client, contextlib.suppress(OSError):
                        if client.recv(4096):
                            drip(client)

        def drip(client: socket.socket) -> None:
            until = time.monotonic() + TIMEOUT / 4
            client.sendall(head)
            while time.monotonic() < until:
                client.sendall(b"x")
                time.sleep(_EVERY)
            tired.append(client)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield "{}:{}".format(*server.getsockname())
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT)
    assert not tired, "a client waited as long as something came"
