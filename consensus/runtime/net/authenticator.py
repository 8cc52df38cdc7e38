"""The door of the HTTP server: with a secret nothing but ``POST /message`` (whose body is sealed) passes unauthenticated.

Whoever does not authenticate gets a short refusal, never longer than the request was, and its connection ends: at once where it
sent the wrong thing, else after ``door.PATIENCE``. Connections of those who did authenticate are counted apart from strangers'.
"""

from __future__ import annotations

import hmac
import logging
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ...config import PROTOCOL_VERSION
from ...errors import SealError
from ...member import Member, format_address
from ...wire.keys import KeyRing
from ...wire.proofs import IDENTITY, NONCE, PROOF_HEADER, SCHEME, Exchange, encode, exchange_of
from .door import Door, StrangerStage, UnprovenPeer, places

_LOG = logging.getLogger("ftlib.consensus")
_REFUSAL = f"HTTP/1.1 401 {SCHEME}\r\n\r\n".encode()
_LEAST = 300
"""Bytes of a request that is answered by a challenge, which with aiohttp's headers takes about 220."""
_IDLE = 75.0
_CONNECTIONS = 4096
"""Of those who have proved who they are, or half of the descriptors that this process may have."""
_LINE = 1 << 17
"""Bytes of a request line: a question may name thousands of ranges or members."""
_HEADERS = 32
"""Fields of a request, of aiohttp's 8190 bytes at most.

A stranger's whole head thus takes less than 400 KB, and less than aiohttp's own limits allow for.
"""
BEARERS = {"/metrics": "metrics"}
"""Paths that also take a bearer token, for clients that cannot sign; the answer is then plain."""


class RefusedError(ConnectionError):
    """Close the connection and say nothing more."""


class Authenticator:
    """Decides for each GET who asks. Without a ring everybody may."""

    def __init__(self, ring: KeyRing | None, member: Member, job: str) -> None:
        """``member``, ``job``: what answers are signed for."""
        self._ring = ring
        values = (member.id, quote(job), str(PROTOCOL_VERSION), quote(format_address(member.address), safe=":[]"))
        self._identity = dict(zip(IDENTITY, values, strict=True))

    def admit(self, request: web.BaseRequest) -> Exchange | web.Response | None:
        """The exchange that ``request`` belongs to; None where none is needed; the answer to one that has yet to sign.

        RefusedError where it may not ask.
        """
        ring = self._ring
        if ring is None:
            return None
        scheme, _, text = request.headers.get("Authorization", "").partition(" ")
        if scheme == "Bearer" and request.path in BEARERS:
            wanted = ring.bearers(BEARERS[request.path])
            if any(hmac.compare_digest(text.encode(errors="replace"), bearer.encode()) for bearer in wanted):
                return None
        if scheme != SCHEME:
            self._refuse(request)
        connection = request.protocol
        if not isinstance(connection, _Connection):
            raise RefusedError
        challenge, connection.challenge = connection.challenge, None
        if challenge is not None:
            try:
                return exchange_of(ring, text, challenge, request.raw_path)
            except SealError:
                self._refuse(request)
        if _size(request) < _LEAST:
            self._refuse(request)
        challenge = connection.challenge = os.urandom(NONCE)
        return web.Response(status=401, headers={"WWW-Authenticate": f"{SCHEME} {encode(challenge)}"})

    def headers(self, exchange: Exchange | None) -> Mapping[str, str]:
        """Who answers, with its proof."""
        if exchange is None:
            return self._identity
        return {**self._identity, PROOF_HEADER: exchange.proof(self._identity)}

    def _refuse(self, request: web.BaseRequest) -> None:
        if request.transport is not None and _size(request) >= len(_REFUSAL):
            request.transport.write(_REFUSAL)
        raise RefusedError


def _size(request: web.BaseRequest) -> int:
    """Bytes of the request's head, about."""
    return len(request.method) + len(request.raw_path) + sum(len(name) + len(value) + 4 for name, value in request.raw_headers)


class _Connection(RequestHandler):
    """aiohttp's, without its long answers and tracebacks for whatever a stranger sends."""

    __slots__ = ("_door", "_stranger", "challenge")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.challenge: bytes | None = None
        """What the next request on this connection must sign."""
        self._door: Door | None = None
        self._stranger: UnprovenPeer | None = None
        """None once it has proved who it is."""

    def came(self, door: Door, stranger: UnprovenPeer) -> None:
        """It came through ``door``, and has said something there."""
        self._door, self._stranger = door, stranger

    def connection_made(self, transport: Any) -> None:
        """First comes what was said at the door."""
        super().connection_made(transport)
        stranger = self._stranger
        if stranger is None or self._door is None:
            return
        if stranger not in self._door:  # hung up on meanwhile
            transport.abort()
        else:
            stranger.end = transport.abort
            self.data_received(bytes(stranger.said))
            stranger.said.clear()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Its place is free."""
        if self._door is not None and self._stranger is not None:
            self._door.gone(self._stranger)
        super().connection_lost(exc)

    def proved(self) -> None:
        """Whoever is there knows the secret: the connection may stay."""
        if self._door is not None and self._stranger is not None:
            self._door.proved(self._stranger)
            self._stranger = None

    def reads(self, *, message: bool) -> None:
        """Whether a message is coming in that is worth reading: then its length counts, not how long the stranger is here."""
        if self._stranger is not None:
            self._stranger.stage = StrangerStage.READING if message else StrangerStage.ASKING

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Close, and log what was our own fault."""
        if status == 500 and not isinstance(exc, ConnectionError):
            _LOG.error("answering %s %s failed", request.method, request.path, exc_info=exc)
        raise RefusedError(message)


def prove(request: web.BaseRequest) -> None:
    """Whoever sent ``request`` is no stranger any more."""
    if isinstance(request.protocol, _Connection):
        request.protocol.proved()


def reading(request: web.BaseRequest, *, message: bool) -> None:
    """Whether the body of ``request`` is a message that is worth reading."""
    if isinstance(request.protocol, _Connection):
        request.protocol.reads(message=message)


class QuietServer(web.Server):
    """Serves connections, a bounded number of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._most = places(_CONNECTIONS, 2)

    def entered(self, door: Door, stranger: UnprovenPeer) -> RequestHandler:
        """The handler of a connection that comes through ``door``."""
        handler = self()
        assert isinstance(handler, _Connection)
        handler.came(door, stranger)
        return handler

    def __call__(self) -> RequestHandler:
        """One connection's handler."""
        options: dict[str, Any] = {"access_log": None, "keepalive_timeout": _IDLE, "lingering_time": 1.0}
        limits = {"max_line_size": _LINE, "max_headers": _HEADERS}
        return _Connection(self, loop=self._loop, auto_decompress=False, **options, **limits)

    def connection_made(self, handler: RequestHandler, transport: Any) -> None:
        """Hang up at once where there are too many."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._most:
            transport.abort()
