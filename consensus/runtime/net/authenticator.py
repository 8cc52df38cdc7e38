"""Authenticates HTTP requests: with a secret only ``POST /message`` (whose body is sealed) passes without authentication.

A client that does not authenticate gets a short refusal, never longer than its request, and its connection ends: at once if it
sent wrong credentials, else after ``door.PATIENCE``. Authenticated connections have a limit of their own, apart from
strangers'.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ...errors import SealError
from ...logs import CarefulLogger
from ...member import Member
from ...wire import heads
from ...wire.keys import KeyRing
from ...wire.proofs import LEAST, NONCE, PROOF_HEADER, SCHEME, Exchange, encode, exchange_of, identity
from .door import Door, StrangerStage, UnprovenPeer, places
from .metrics import TARGETS

_LOG = CarefulLogger()
_REFUSAL = heads.write(f"HTTP/1.1 401 {SCHEME}")
_IDLE = 75.0
_CONNECTIONS = 4096
"""The most authenticated connections; fewer if that is more than half of the descriptors that this process may have."""
_LINE = 1 << 17
"""The most bytes of a request line: a query may name thousands of ranges or members."""
_HEADERS = 32
"""The most header fields of a request, each of at most 8190 bytes (aiohttp's limit).

So a stranger's whole head takes less than 400 KB, which is less than aiohttp's own limits allow.
"""
BEARERS = {"/metrics": "metrics", TARGETS: "metrics"}
"""Paths that also take a bearer token, for clients that cannot sign; the answer is then plain."""


class RefusedError(ConnectionError):
    """Close the connection without a further answer."""


class Authenticator:
    """Authenticates the client of each request. Without a ring all clients pass."""

    def __init__(self, ring: KeyRing | None, member: Member, job: str) -> None:
        """``member``, ``job``: the identity in the answers."""
        self._ring = ring
        self._member, self._job = member, job
        self._identity = identity(member.id, job, member.address)

    def admit(self, request: web.BaseRequest) -> Exchange | web.Response | None:
        """The exchange of ``request``; None if none is needed; a response with a challenge if the client has yet to sign.

        Raises RefusedError if the client is not authorized.
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
                return exchange_of(ring, text, challenge, request.raw_path, request.method)
            except SealError:
                self._refuse(request)
        if _size(request) < LEAST:
            self._refuse(request)
        challenge = connection.challenge = os.urandom(NONCE)
        return web.Response(status=401, headers={"WWW-Authenticate": f"{SCHEME} {encode(challenge)}"})

    def is_here(self, member_id: str) -> bool:
        """Whether that is this member's lifetime."""
        return member_id == self._member.id

    def is_job(self, job: str) -> bool:
        """Whether that is this member's job."""
        return job == self._job

    def headers(self, exchange: Exchange | None) -> Mapping[str, str]:
        """The identity of this member, with its proof."""
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
    """aiohttp's handler, without its long answers and tracebacks for bad requests of strangers."""

    __slots__ = ("_door", "_stranger", "challenge")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.challenge: bytes | None = None
        """The challenge that the next request on this connection must sign."""
        self._door: Door | None = None
        self._stranger: UnprovenPeer | None = None
        """None once the client has authenticated."""

    def came(self, door: Door, stranger: UnprovenPeer) -> None:
        """The connection came through ``door``, which has already read the beginning of its request."""
        self._door, self._stranger = door, stranger

    def connection_made(self, transport: Any) -> None:
        """Handle first what the door has read."""
        super().connection_made(transport)
        stranger = self._stranger
        if stranger is None or self._door is None:
            return
        if stranger not in self._door:  # the door has closed it meanwhile
            transport.abort()
        else:
            stranger.end = transport.abort
            self.data_received(bytes(stranger.said))
            stranger.said.clear()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free its place."""
        if self._door is not None and self._stranger is not None:
            self._door.gone(self._stranger)
        super().connection_lost(exc)

    def proved(self) -> None:
        """The client knows the secret: the connection may stay."""
        if self._door is not None and self._stranger is not None:
            self._door.proved(self._stranger)
            self._stranger = None

    def reads(self, *, message: bool) -> None:
        """``message``: a message worth reading is arriving; then limits of reading apply instead of the stranger's time."""
        if self._stranger is not None:
            self._stranger.stage = StrangerStage.READING if message else StrangerStage.ASKING

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Close the connection; log an error that is our own fault."""
        if status == 500 and not isinstance(exc, ConnectionError):
            _LOG.error("answering %s %s failed", request.method, request.path, exc_info=exc)
        raise RefusedError(message)


def prove(request: web.BaseRequest) -> None:
    """The sender of ``request`` is no stranger any more."""
    if isinstance(request.protocol, _Connection):
        request.protocol.proved()


def reading(request: web.BaseRequest, *, message: bool) -> None:
    """``message``: whether the body of ``request`` is a message worth reading."""
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
        """Close the connection at once if there are too many."""
        super().connection_made(handler, transport)
        if len(self.connections) > self._most:
            transport.abort()
