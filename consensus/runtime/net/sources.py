"""The HTTP paths of the layer above: their bodies are made in the training process, on connections that the agent accepted.

The agent reads the request, then hands the connection itself over: a large body never passes through the agent, so the agent
stays free to answer pings, wherever it runs.
"""

from __future__ import annotations

import contextlib
import http
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...errors import RefusalError
from ...interface import Source
from ...logs import CarefulLogger
from ...wire import heads
from ...wire.proofs import PIECE, Frames
from .fork import release_in_children

_LOG = CarefulLogger()
_AT_A_TIME = 32
_CHUNK_TIMEOUT = 60.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Request:
    """A received GET. ``headers``: further headers of the answer. ``key``: seals the body (see ``proofs``)."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str] = field(default_factory=dict)
    key: bytes = field(default=b"", repr=False)
    stream: bool = False
    """Whether it asks for a stream (see ``acceptors``), whose key that is then."""


HandOver = Callable[[socket.socket, Request], None]
"""Takes over a connection and has it answered elsewhere."""


class Sources:
    """Paths and their sources. Thread-safe; each answer is written by a thread of its own."""

    def __init__(self) -> None:
        """No paths yet."""
        self._sources: dict[str, Source] = {}
        self._room = threading.BoundedSemaphore(_AT_A_TIME)

    @property
    def paths(self) -> frozenset[str]:
        """The served paths."""
        return frozenset(self._sources)

    def serve(self, path: str, source: Source) -> None:
        """Answer GET ``path`` with what ``source`` yields."""
        self._sources[path] = source

    def answer(self, connection: socket.socket, request: Request) -> None:
        """Answer on ``connection``, which this object then owns. Returns at once."""
        source = self._sources.get(request.path)
        response = _Response(connection, request)
        if source is None:
            response.refuse(http.HTTPStatus.NOT_FOUND, f"nothing is served at {request.path}\n")
        elif not self._room.acquire(blocking=False):
            response.refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, "too many transfers at a time; ask again\n")
        else:
            writer = threading.Thread(target=self._write, args=(response, source, request), name="ftlib-serve", daemon=True)
            try:
                writer.start()
            except RuntimeError as error:  # this process may have no more threads
                self._room.release()
                _LOG.warning("serving %s failed: %s", request.path, error)
                response.refuse(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{error}; ask again\n")

    def _write(self, response: _Response, source: Source, request: Request) -> None:
        try:
            response.write(source, request)
        finally:
            self._room.release()


def refuse(connection: socket.socket, request: Request, status: int, text: str) -> None:
    """Answer ``request`` with an error status and a short text, and close ``connection``."""
    _Response(connection, request).refuse(http.HTTPStatus(status), text)


class _Response:
    """One HTTP response on a socket of its own. An error after its first chunk cuts the connection: a torn body."""

    def __init__(self, connection: socket.socket, request: Request) -> None:
        release_in_children(self, lambda: [connection.fileno()])  # a child would keep the client waiting for the rest
        connection.settimeout(_CHUNK_TIMEOUT)
        self._connection = connection
        self._headers = request.headers
        self._key = request.key
        self._frames = Frames(request.key, http.HTTPStatus.OK) if request.key else None
        self._begun = False

    def refuse(self, status: http.HTTPStatus, text: str) -> None:
        """Send a short text with an error status."""
        body = Frames(self._key, status).whole(text.encode()) if self._key else text.encode()
        with contextlib.suppress(OSError), self._connection:
            self._connection.sendall(self._head(status, {"Content-Length": str(len(body))}) + body)

    def write(self, source: Source, request: Request) -> None:
        """Send all chunks of ``source`` as it yields them."""
        try:
            chunks = source(request.query)
            try:
                for chunk in chunks:
                    self._chunk(memoryview(chunk))
            finally:
                close = getattr(chunks, "close", None)
                if close is not None:
                    close()
            self._begin()
            if self._frames is not None:
                self._put(memoryview(self._frames.seal(b"", last=True)))
            self._connection.sendall(b"0\r\n\r\n")
            self._connection.close()
        except OSError as error:  # the client has gone, or does not read any more
            _LOG.debug("serving %s ended: %s", request.path, error)
            self._cut()
        except LookupError as error:
            status = error.status if isinstance(error, RefusalError) else http.HTTPStatus.CONFLICT
            self._give_up(http.HTTPStatus(status), f"{error.args[0] if error.args else error}\n")
        except Exception as error:  # noqa: BLE001 - it becomes a status
            _LOG.exception("serving %s failed", request.path)
            self._give_up(http.HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: {error}\n")

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._connection.sendall(self._head(http.HTTPStatus.OK, {"Transfer-Encoding": "chunked"}))

    def _chunk(self, view: memoryview) -> None:
        self._begin()
        if self._frames is None:
            self._put(view)
            return
        flat = view.cast("B") if view.nbytes else view
        for start in range(0, view.nbytes, PIECE):
            self._put(memoryview(self._frames.seal(flat[start : start + PIECE])))

    def _put(self, view: memoryview) -> None:
        if view.nbytes:
            self._connection.sendall(f"{view.nbytes:x}\r\n".encode())
            self._connection.sendall(view)
            self._connection.sendall(b"\r\n")

    def _give_up(self, status: http.HTTPStatus, text: str) -> None:
        if self._begun:
            self._cut()
        else:
            self.refuse(status, text)

    def _cut(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._connection.close()

    def _head(self, status: http.HTTPStatus, more: Mapping[str, str]) -> bytes:
        fields = {"Content-Type": "application/octet-stream", "Connection": "close", **self._headers, **more}
        return heads.write(f"HTTP/1.1 {status.value} {status.phrase}", fields)
