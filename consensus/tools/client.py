"""One authenticated GET, in blocking code, for tools and for the layer above (see ``proofs``).

with get(("127.0.0.1", 7000), "/status", ring) as answer:
    text = answer.read()
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Self

from ..errors import SealError, SecretError
from ..member import Address, format_address
from ..wire.keys import KeyRing
from ..wire.proofs import SCHEME, Exchange, Frames, decode, fresh_nonce, greeting

_LOOK = 1.0
"""Seconds without a byte between two calls of ``go_on``."""


class Answer:
    """An answer whose body has yet to be read. With a secret, every byte that ``read`` returns is authentic."""

    def __init__(
        self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse, frames: Frames | None
    ) -> None:
        """Use :func:`get`."""
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self._connection = connection
        self._response = response
        self._frames = frames
        self._ready = memoryview(b"")
        self._ended = frames is None

    def read(self, count: int | None = None) -> bytes:
        """The next ``count`` bytes, fewer at the end; None: all that remain.

        Raises OSError, ``http.client.HTTPException`` (IncompleteRead) if a plain body breaks off, EOFError if a sealed body
        breaks off, or SecretError if it is forged.
        """
        if self._frames is None:
            return self._response.read(count)
        parts: list[bytes | memoryview] = []
        missing = float("inf") if count is None else count
        while missing > 0:
            if not self._ready:
                if self._ended:
                    break
                self._ready = memoryview(self._frame(self._frames))
                continue
            part = self._ready[: int(min(missing, len(self._ready)))]
            self._ready = self._ready[len(part) :]
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def readinto(self, into: memoryview) -> int:
        """Fill ``into`` (bytes, writable); a plain body needs no other buffer. Returns the number of bytes, fewer at the end.

        Raises the errors of ``read``.
        """
        done = 0
        while done < len(into):
            if self._frames is None:
                count = self._response.readinto(into[done:])
            elif self._ready:
                count = min(len(into) - done, len(self._ready))
                into[done : done + count] = self._ready[:count]
                self._ready = self._ready[count:]
            elif self._ended:
                break
            else:
                self._ready = memoryview(self._frame(self._frames))
                continue
            if not count:
                break
            done += count
        return done

    def finish(self) -> None:
        """Check that the whole body has been read: a sealed body marks its end. Raises EOFError if bytes remain."""
        if not self._ended and (self.read(1) or not self._ended):
            raise EOFError("the answer goes on")

    def _frame(self, frames: Frames) -> bytes:
        try:
            data, self._ended = frames.read(self._response.read)
        except SealError as error:
            raise SecretError(str(error)) from None
        return data

    def fileno(self) -> int:
        """The connection's descriptor; -1 once it is closed."""
        sock = self._connection.sock
        return -1 if sock is None else int(sock.fileno())

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._response.close()  # owns the connection if the server has announced that it closes it
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def get(
    address: Address,
    target: str,
    ring: KeyRing | None = None,
    *,
    timeout: float = 5.0,
    within: float | None = None,
    go_on: Callable[[], bool] | None = None,
) -> Answer:
    """``GET target`` (path and query) of the member at ``address``, signed with ``ring``.

    ``timeout``: seconds without a byte. ``within``: seconds for all, the last byte of the body included, after which each read
    raises TimeoutError; not beside ``go_on``. ``go_on``: called every second without a byte, until the answer is closed; once
    it returns False, ConnectionAbortedError is raised. Raises OSError or ``http.client.HTTPException`` if nobody answers, or
    no member; SecretError if the two sides do not have the same secret.
    """
    assert within is None or go_on is None, "go_on decides how long"
    host, port = address
    connection = Connection(host, port, timeout, within) if go_on is None else _Patient(host, port, timeout, go_on)
    try:
        connection.connect()
        if ring is None:
            response, exchange = ask_plainly(connection, target), None
        else:
            response, exchange = ask_signed(connection, target, ring)
        return Answer(connection, response, None if exchange is None else exchange.frames(response.status))
    except BaseException:
        connection.close()
        raise


class Connection(http.client.HTTPConnection):
    """A connection that is opened only once: the server's challenge is valid for one connection."""

    auto_open = 0

    def __init__(self, host: str, port: int, timeout: float, within: float | None = None) -> None:
        """``timeout``, ``within``: see :func:`get`; what is read counts, not what is sent."""
        super().__init__(host, port, timeout=timeout)
        self._longest = timeout
        self._over = None if within is None else time.monotonic() + within

    def connect(self) -> None:
        """Connect, in ``timeout`` seconds. OSError, also for what cannot be the name of a host."""
        try:
            super().connect()
        except UnicodeError:  # a part of it is empty, or too long
            raise socket.gaierror(socket.EAI_NONAME, f"{self.host!r} is no host name") from None
        if self._over is not None:
            self.sock: socket.socket = _TimedSocket(self.sock, self._longest, self._over)


class _Patient(Connection):
    """A connection that is given up when ``go_on`` returns False."""

    def __init__(self, host: str, port: int, timeout: float, go_on: Callable[[], bool]) -> None:
        super().__init__(host, port, min(_LOOK, timeout))
        self._patience = timeout
        self._go_on = go_on

    def connect(self) -> None:
        """Connect in short tries, with a call of ``go_on`` between them, until ``timeout``."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                super().connect()
                break
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                _ask(self._go_on)
        self.sock: socket.socket = _Socket(self.sock, self._patience, self._go_on)


class _TimedSocket(socket.socket):
    """A socket from which nothing is read after the moment ``over``: a server that sends a byte now and then is not endless."""

    def __init__(self, connected: socket.socket, longest: float, over: float) -> None:
        """``longest``: seconds without a byte."""
        super().__init__(connected.family, connected.type, connected.proto, connected.detach())
        self.settimeout(longest)
        self._longest = longest
        self._over = over

    def recv_into(self, *args: Any) -> int:
        """All reads from this socket end up here."""
        left = self._over - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(min(left, self._longest))
        return super().recv_into(*args)


class _Socket(socket.socket):
    """A socket whose reads wait up to ``patience`` seconds, and call ``go_on`` every ``_LOOK`` seconds."""

    def __init__(self, connected: socket.socket, patience: float, go_on: Callable[[], bool]) -> None:
        timeout = connected.gettimeout()
        super().__init__(connected.family, connected.type, connected.proto, connected.detach())
        self.settimeout(timeout)
        self._patience = patience
        self._go_on = go_on

    def recv_into(self, *args: Any) -> int:
        """All reads from this socket end up here."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return super().recv_into(*args)
            except TimeoutError:
                if time.monotonic() >= deadline:
                    raise
                _ask(self._go_on)


def _ask(go_on: Callable[[], bool]) -> None:
    if not go_on():
        raise ConnectionAbortedError("given up at this end")


def ask_plainly(
    connection: http.client.HTTPConnection, target: str, headers: Mapping[str, str] = MappingProxyType({})
) -> http.client.HTTPResponse:
    """``GET target`` on an open connection; raises SecretError if the other side asks for a secret."""
    connection.request("GET", target, headers=dict(headers))
    response = connection.getresponse()
    if response.status == 401:
        raise SecretError(f"{_where(connection)} asks for the job's secret: set FTLIB_SECRET or FTLIB_SECRET_FILE")
    return response


def ask_signed(
    connection: http.client.HTTPConnection,
    target: str,
    ring: KeyRing,
    headers: Mapping[str, str] = MappingProxyType({}),
    method: str = "GET",
) -> tuple[http.client.HTTPResponse, Exchange]:
    """``GET target``, signed, on an open connection: the answer of a member that has proven itself. ``headers``: further ones.

    Raises SecretError if the two sides do not have the same secret.
    """
    nonce = fresh_nonce()
    connection.request(method, target, headers={"Authorization": greeting(nonce)})
    response = connection.getresponse()
    scheme, _, challenge = response.getheader("WWW-Authenticate", "").partition(" ")
    if response.status != 401 or scheme != SCHEME:
        raise SecretError(f"{_where(connection)} does not authenticate itself: it has no secret, or is no member")
    response.read()
    try:
        exchange = Exchange(ring.first, nonce, decode(challenge), target, method)
    except SealError as error:
        raise SecretError(f"{_where(connection)}: {error}") from None
    connection.request(method, target, headers={**headers, "Authorization": exchange.credentials()})
    response = connection.getresponse()
    if response.status == 401:
        raise SecretError(f"{_where(connection)} uses another secret: give the one of its job")
    if not exchange.proves({name.lower(): value for name, value in response.getheaders()}):
        raise SecretError(f"{_where(connection)} does not know the secret")
    return response, exchange


def _where(connection: http.client.HTTPConnection) -> str:
    return format_address((connection.host, connection.port))
