"""The other side of ``client.get``, in blocking code: one GET is read from a connection, and answered (see ``proofs``).

    visit = sign_in(connection, ring, "parameter server")
    visit.answer(200, b"welcome")

For services of the layer above that are no members: a member's own paths are served by its agent.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from urllib.parse import quote

from ..config import PROTOCOL_VERSION
from ..errors import SealError, SecretError
from ..member import Address, format_address
from ..wire.keys import KeyRing
from ..wire.proofs import IDENTITY, NONCE, PROOF_HEADER, SCHEME, Exchange, encode, exchange_of

_MOST = 4096
"""Bytes of a request's head."""
_LEAST = 300
"""Bytes of a request that is answered by a challenge, so that no answer is longer than what asked for it."""


class Visit:
    """A request whose sender knows the secret. Its connection stays open: it is the caller's."""

    def __init__(self, connection: socket.socket, target: str, exchange: Exchange | None, identity: Mapping[str, str]) -> None:
        """Use :func:`sign_in`."""
        self.target = target
        """Path and query."""
        self._connection = connection
        self._exchange = exchange
        self._identity = identity

    def answer(self, status: int, body: bytes) -> None:
        """Send it, once; sealed if there is a secret. OSError if the connection has ended."""
        headers = dict(self._identity)
        if self._exchange is not None:
            headers[PROOF_HEADER] = self._exchange.proof(headers)
            body = self._exchange.frames(status).whole(body)
        lines = [
            f"HTTP/1.1 {status} .",
            f"Content-Length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        self._connection.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def sign_in(connection: socket.socket, ring: KeyRing | None, name: str, *, timeout: float = 1.0) -> Visit:
    """Read a GET from ``connection``, and have its sender show that it knows the secret. ``name``: who answers, for its log.

    SecretError if it does not, and a short refusal is sent; OSError (TimeoutError after ``timeout`` seconds, however much is
    sent) if there is no whole request.
    """
    deadline = time.monotonic() + timeout
    where: Address = connection.getsockname()[:2]
    values = ("", quote(name), str(PROTOCOL_VERSION), quote(format_address(where), safe=":[]"))
    identity = dict(zip(IDENTITY, values, strict=True))
    target, text, size = _read(connection, deadline)
    if ring is None:
        return Visit(connection, target, None, identity)
    challenge = os.urandom(NONCE)
    if text is None or size < _LEAST:
        raise _refused(connection, "no secret")
    connection.sendall(
        f"HTTP/1.1 401 {SCHEME}\r\nWWW-Authenticate: {SCHEME} {encode(challenge)}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    asked, text, _ = _read(connection, deadline)
    try:
        if asked != target:
            raise SealError("unauthentic", "another request was announced")
        exchange = exchange_of(ring, text or "", challenge, target)
    except SealError as error:
        raise _refused(connection, str(error)) from None
    return Visit(connection, target, exchange, identity)


def _read(connection: socket.socket, deadline: float) -> tuple[str, str | None, int]:
    """Target, credentials (None: of no scheme that is known here) and size of one request's head."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole request in time")
        connection.settimeout(left)
        data = connection.recv(_MOST - len(head))
        head += data
        if not data or (len(head) >= _MOST and not head.endswith(b"\r\n\r\n")):
            raise ConnectionAbortedError("no whole request")
    lines = head.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    target, _, version = rest.rpartition(" ")
    if method != "GET" or not version.startswith("HTTP/1."):
        raise ConnectionAbortedError("no GET of HTTP/1.1")
    headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
    scheme, _, text = headers.get("authorization", "").partition(" ")
    return target, text if scheme == SCHEME else None, len(head)


def _refused(connection: socket.socket, why: str) -> SecretError:
    connection.sendall(f"HTTP/1.1 401 {SCHEME}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    return SecretError(why)
