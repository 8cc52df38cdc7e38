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

from ..errors import SealError, SecretError
from ..wire import heads
from ..wire.keys import KeyRing
from ..wire.proofs import LEAST, NONCE, PROOF_HEADER, SCHEME, Exchange, encode, exchange_of, identity

_MOST = 4096
"""Bytes of a request's head."""
_DENIED = f"HTTP/1.1 401 {SCHEME}"


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
        self._connection.sendall(heads.write(f"HTTP/1.1 {status} .", {"Content-Length": str(len(body)), **headers}) + body)


def sign_in(connection: socket.socket, ring: KeyRing | None, name: str, *, timeout: float = 1.0) -> Visit:
    """Read a GET from ``connection``, and have its sender show that it knows the secret. ``name``: who answers, for its log.

    SecretError if it does not, and a short refusal is sent; OSError (TimeoutError after ``timeout`` seconds, however much is
    sent) if there is no whole request.
    """
    deadline = time.monotonic() + timeout
    who = identity("", name, connection.getsockname()[:2])
    target, text, size = _read(connection, deadline)
    if ring is None:
        return Visit(connection, target, None, who)
    challenge = os.urandom(NONCE)
    if text is None or size < LEAST:
        raise _refused(connection, "no secret")
    connection.sendall(heads.write(_DENIED, {"WWW-Authenticate": f"{SCHEME} {encode(challenge)}", "Content-Length": "0"}))
    asked, text, _ = _read(connection, deadline)
    try:
        if asked != target:
            raise SealError("unauthentic", "another request was announced")
        exchange = exchange_of(ring, text or "", challenge, target)
    except SealError as error:
        raise _refused(connection, str(error)) from None
    return Visit(connection, target, exchange, who)


def _read(connection: socket.socket, deadline: float) -> tuple[str, str | None, int]:
    """Target, credentials (None: of no scheme that is known here) and size of one request's head."""
    head = b""
    while not head.endswith(heads.END):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no whole request in time")
        connection.settimeout(left)
        data = connection.recv(_MOST - len(head))
        head += data
        if not data or (len(head) >= _MOST and not head.endswith(heads.END)):
            raise ConnectionAbortedError("no whole request")
    first, fields = heads.read(head)
    method, _, rest = first.partition(" ")
    target, _, version = rest.rpartition(" ")
    if method != "GET" or not version.startswith("HTTP/1."):
        raise ConnectionAbortedError("no GET of HTTP/1.1")
    scheme, _, text = fields.get("authorization", "").partition(" ")
    return target, text if scheme == SCHEME else None, len(head)


def _refused(connection: socket.socket, why: str) -> SecretError:
    connection.sendall(heads.write(_DENIED, {"Content-Length": "0", "Connection": "close"}))
    return SecretError(why)
