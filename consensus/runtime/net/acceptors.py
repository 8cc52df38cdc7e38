"""The streams that other members ask for: taken in the training process, on connections that the agent accepted.

A stream for a path that nobody accepts yet waits here, until ``accept`` is called or the asking side has given up: so neither
side has to be first, and nobody asks again and again. Where the program has ended its acceptance the asking side hears so.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import CodecError
from ...interface import Stream
from ...logs import CarefulLogger
from ...member import Member
from ...wire import heads
from ...wire.streams import ENDED, PROTOCOL, read_query
from .fork import release_in_children
from .sources import Request, refuse

_LOG = CarefulLogger()
_MOST = 256
"""The most streams that wait for their paths."""
_ANSWER_TIMEOUT = 1.0
"""Seconds for the head of an answer to be sent: it fits every socket's buffer."""

Handler = Callable[[Stream], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    connection: socket.socket
    request: Request
    peer: Member
    until: float

    def over(self, now: float) -> bool:
        """Whether the asking side has given up: its time is up, or its end is closed."""
        if now >= self.until:
            return True
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))


class Acceptors:
    """Paths and their handlers. Thread-safe."""

    def __init__(self) -> None:
        """No paths yet."""
        self._lock = threading.Lock()
        self._handlers: dict[str, Handler] = {}
        self._ended = set[str]()
        """Paths that were accepted once, and are not any more."""
        self._waiting = waiting = list[_Waiting]()
        self._closed = False
        release_in_children(self, lambda: [each.connection.fileno() for each in waiting])

    def accept(self, path: str, handler: Handler, here: Callable[[], Member]) -> Callable[[], None]:
        """Give every stream for ``path`` to ``handler``; those that wait for it at once. Returns what ends that.

        ``here``: this member, asked when a stream comes. Raises ValueError if the path is taken.
        """
        with self._lock:
            if path in self._handlers:
                raise ValueError(path)
            self._handlers[path] = handler
            self._ended.discard(path)
            ready = [each for each in self._waiting if each.request.path == path]
            self._keep([each for each in self._waiting if each.request.path != path])
        now = time.monotonic()
        for each in ready:
            if each.over(now):
                each.connection.close()
            else:
                _take(each, handler, here())

        def cancel() -> None:
            with self._lock:
                if self._handlers.get(path) is handler:
                    del self._handlers[path]
                    self._ended.add(path)

        return cancel

    def arrived(self, connection: socket.socket, request: Request, here: Member) -> None:
        """Take over ``connection``, on which ``request`` asks for a stream."""
        try:
            asked = read_query(request.query)
        except CodecError as error:  # the agent has read it before: not from the network
            _LOG.warning("a request for a stream could not be read: %s", error)
            connection.close()
            return
        now = time.monotonic()
        stream = _Waiting(connection, request, asked.here, now + asked.within)
        with self._lock:
            handler = self._handlers.get(request.path)
            ended = request.path in self._ended
            full = False
            if handler is None and not ended:
                gone = [each for each in self._waiting if each.over(now)]
                for each in gone:
                    each.connection.close()
                self._keep([each for each in self._waiting if each not in gone])
                full = self._closed or len(self._waiting) >= _MOST
                if not full:
                    self._waiting.append(stream)
        if handler is not None:
            _take(stream, handler, here)
        elif ended:
            refuse(connection, request, ENDED, "its program accepts that path no more\n")
        elif full:
            refuse(connection, request, 503, f"{len(self._waiting)} streams wait already; accept their paths first\n")

    def close(self) -> None:
        """Refuse all streams that wait, and those that come. Idempotent."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting)
            self._keep([])
        for each in waiting:
            each.connection.close()

    def _keep(self, waiting: list[_Waiting]) -> None:
        self._waiting[:] = waiting


def _take(stream: _Waiting, handler: Handler, here: Member) -> None:
    """Answer 101, and give the connection to ``handler``, which owns it from then on."""
    connection = stream.connection
    try:
        fields = {"Upgrade": PROTOCOL, "Connection": "Upgrade", **stream.request.headers}
        connection.settimeout(_ANSWER_TIMEOUT)
        connection.sendall(heads.write("HTTP/1.1 101 Switching Protocols", fields))
        connection.settimeout(None)
        handler(Stream(connection, stream.request.key, stream.peer, dialled=False, here=here))
    except OSError as error:  # the asking side has gone
        _LOG.debug("a stream of %s ended at once: %s", stream.peer, error)
        connection.close()
    except Exception:  # noqa: BLE001 - one stream must not end the others
        _LOG.exception("a stream of %s for %s could not be taken", stream.peer, stream.request.path)
        with contextlib.suppress(OSError):
            connection.close()
