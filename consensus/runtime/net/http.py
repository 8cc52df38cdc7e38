"""The HTTP side of an agent, on the same port number as UDP: big messages, liveness connections, status, and the paths of the
layer above.

``POST /message`` takes a packet (204); everything else passes the ``authenticator`` first. ``GET /tether`` answers with this
lifetime's id and is then held open: the other side waits for its end, which comes when the process dies. ``GET /identity`` says
who listens here, to members of any job and version. ``GET /status`` is JSON, ``GET /metrics`` the same for Prometheus. Further
GET paths come from ``serve``. ``POST /order`` tells the training process to end (see ``wire.orders``). Below
``/dashboard`` are ``pages`` for browsers, which let in by themselves. With a secret, bodies
are sealed in frames (see ``proofs``). A GET with ``Upgrade: ftlib-stream`` asks for a duplex connection to the training process
(see ``acceptors``).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from ...errors import CodecError
from ...member import Address, format_address
from ...storage.thread_pool import on_daemon
from ...wire.envelope import Sealer
from ...wire.keys import Key
from ...wire.orders import PATH as ORDER
from ...wire.orders import OrderReply
from ...wire.pieces import LARGEST
from ...wire.proofs import Exchange
from ...wire.streams import PROTOCOL, read_query
from .authenticator import Authenticator, QuietServer, RefusedError, prove, reading
from .door import Door, UnprovenPeer
from .metrics import CONTENT_TYPE, render, targets
from .pages import MountedPages
from .sources import HandOver, Request

_HELD_POLL = 0.02
_READ_TIMEOUT = 5.0
"""Seconds for a whole message to arrive."""
_READING = 64
"""The most messages read at a time; each has at most 64 KiB. Those whose first bytes may yet be a stranger's do not count."""

_POST_TIMEOUT = 5.0
_FENCE_TIMEOUT = 10.0
_CONNECTIONS = 256
"""The most at a time: the first view of a thousand members goes to all of them by HTTP, and a process has 1024 descriptors."""

_CONNECT_TIMEOUT = 0.5
"""Seconds for a connection. A host that is away takes none, and must not keep a place for longer: messages are repeated."""

_POSTS_IN_FLIGHT = 16
"""The most to one address; more are dropped, as a full socket buffer would do it."""

_UNANSWERED = 2
"""The most to an address that has answered nothing, or not the last one: many such must not take all places."""

_ANSWERED = 16384
"""The most addresses to remember."""


class HttpServer:
    """Serves one listening socket. Everything here runs on the loop's thread."""

    def __init__(
        self,
        authenticator: Authenticator,
        received: Callable[[bytes, str], bool],
        sealer: Sealer,
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        served: Callable[[], frozenset[str]],
        hand_over: HandOver,
        order: Callable[[Mapping[str, str], str, bool], OrderReply],
        *,
        pages: MountedPages | None = None,
        held: Callable[[], bool] = lambda: False,
        limit: int = LARGEST,
    ) -> None:
        """``received(packet, source)``: handles a packet and returns whether a member sent it. ``served``: the paths that
        ``hand_over`` answers. ``order(query, source, signed)``: judges an order. ``pages``: what is served to browsers.

        While ``held`` nothing is answered, as if the process were stopped.
        """
        self._authenticator = authenticator
        self._received = received
        self._sealer = sealer
        self._status = status
        self._served = served
        self._hand_over = hand_over
        self._order = order
        self._pages = pages
        self._held = held
        self._limit = limit
        self._reading = 0
        self._door: Door | None = None
        self._entering: set[asyncio.Task[None]] = set()
        """Strangers on their way from the door to the server."""
        self._web: QuietServer | None = None
        self._closing = asyncio.Event()
        self._opening = asyncio.Lock()
        """Held while the server opens: it could not be closed half open."""

    async def open(self, sock: socket.socket, accepted: Iterable[socket.socket] = ()) -> None:
        """Take over the listening ``sock``, and the connections ``accepted`` before."""
        waiting = list(accepted)
        async with self._opening:
            if not self._closing.is_set():
                self._open(sock, waiting)
                waiting = []
        for connection in waiting:
            connection.close()

    def _open(self, sock: socket.socket, waiting: Iterable[socket.socket]) -> None:
        loop = asyncio.get_running_loop()

        def request(*args: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = args
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._limit)

        self._web = QuietServer(self._handle, request_factory=request, handler_cancellation=True)
        self._door = Door(sock, self._enter, self._refuse)
        self._door.open(waiting)

    def _refuse(self, head: bytes) -> bytes | None:
        """The answer to what is refused without HTTP."""
        return None if self._pages is None or self._held() else self._pages.turns_away(head)

    def _enter(self, sock: socket.socket, stranger: UnprovenPeer) -> None:
        assert self._door is not None and self._web is not None
        handler = self._web.entered(self._door, stranger)
        task = asyncio.create_task(self._connect(handler, sock))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _connect(self, handler: RequestHandler, sock: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: handler, sock)
        except OSError:
            sock.close()

    async def close(self) -> None:
        """Refuse new connections, then end the open ones. Idempotent."""
        self._closing.set()
        if self._pages is not None:
            await self._pages.close()
        async with self._opening:
            await self._close()

    async def _close(self) -> None:
        if self._door is not None:
            self._door.close()
            if self._entering:  # no connection may be on its way into the server when that closes
                await asyncio.wait(self._entering)
        if self._web is not None:
            await self._web.shutdown(timeout=0.05)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        while self._held():  # noqa: ASYNC110 - the kernel offers no event for a process that is continued
            await asyncio.sleep(_HELD_POLL)
        try:
            if request.method == "POST" and request.path == "/message":
                return await self._message(request)
            if self._pages is not None and self._pages.wants(request.path):
                return await self._pages.answer(request)
            exchange = self._authenticator.admit(request)
            if isinstance(exchange, web.Response):
                return exchange
            prove(request)
            return await self._admitted(request, exchange)
        except web.HTTPException as refusal:
            return web.Response(status=refusal.status, text=refusal.reason)

    async def _admitted(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        if request.method == "GET" and request.headers.get("Upgrade") == PROTOCOL:
            return self._stream(request, exchange)
        if request.method == "GET":
            return await self._get(request, exchange)
        if request.method == "POST" and request.path == ORDER:
            return await self._take_order(request, exchange)
        return web.Response(status=405)

    async def _message(self, request: web.BaseRequest) -> web.StreamResponse:
        """Read a message; with a secret only if its beginning may be authentic."""
        overhead = self._sealer.overhead
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                data = await (self._read_sealed(request, overhead) if overhead else self._read(request))
        except TimeoutError:
            raise RefusedError from None
        if self._received(data, request.remote or "?"):
            prove(request)
        return web.Response(status=204)

    async def _read(self, request: web.BaseRequest) -> bytes:
        with self._place(request):
            return await request.read()

    async def _read_sealed(self, request: web.BaseRequest, overhead: int) -> bytes:
        """The body; raises RefusedError if its first ``overhead`` bytes cannot be authentic. It has no place before these."""
        data = bytearray()
        while len(data) < overhead and (piece := await request.content.readany()):
            data += piece
        if not self._sealer.promising(bytes(data[:overhead])):
            self._received(bytes(data[:overhead]), request.remote or "?")  # counts it
            raise RefusedError
        with self._place(request):
            while len(data) <= self._limit:
                piece = await request.content.readany()
                if not piece:
                    return bytes(data)
                data += piece
            raise web.HTTPRequestEntityTooLarge(self._limit, len(data))

    @contextlib.contextmanager
    def _place(self, request: web.BaseRequest) -> Iterator[None]:
        """One of the places for messages worth reading; raises RefusedError if all are taken."""
        if self._reading >= _READING:
            raise RefusedError
        self._reading += 1
        reading(request, message=True)
        try:
            yield
        finally:
            reading(request, message=False)
            self._reading -= 1

    async def _get(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        if request.path == "/tether":
            return await self._hold(request, exchange)
        if request.path == "/identity":
            return web.Response(status=204, headers=self._authenticator.headers(exchange))
        if request.path in self._served():
            key = b"" if exchange is None else exchange.body_key()
            return self._pass_on(request, exchange, key)
        return self._body(exchange, *await self._facts(request.path))

    async def _facts(self, path: str) -> tuple[int, bytes, str]:
        """What is known here, as ``path`` wants it: HTTP status, body and type."""
        match path:
            case "/status":
                return 200, json.dumps(dict(await self._status()), default=str).encode(), "application/json"
            case "/metrics":
                return 200, await on_daemon(render, await self._status()), CONTENT_TYPE
            case "/targets":
                return 200, json.dumps(targets(await self._status())).encode(), "application/json"
        return 404, f"nothing is served at {path}\n".encode(), "text/plain"

    async def _take_order(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        """Answer first, then do it: a process that is killed answers nothing."""
        verdict = self._order(dict(request.query), request.remote or "?", exchange is not None)
        response = self._body(exchange, verdict.status, f"{verdict.text}\n".encode(), "text/plain")
        await response.prepare(request)
        await response.write_eof()
        if verdict.carry_out is not None:
            verdict.carry_out()
        return response

    def _body(self, exchange: Exchange | None, status: int, body: bytes, kind: str) -> web.Response:
        if exchange is not None:
            body, kind = exchange.frames(status).whole(body), "application/octet-stream"
        return web.Response(status=status, body=body, headers={**self._authenticator.headers(exchange), "Content-Type": kind})

    async def _hold(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._authenticator.headers(exchange))
        await response.prepare(request)
        await self._closing.wait()  # cancelled when the client disconnects
        return response

    def _stream(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        """Another member asks for a stream: check whom it means, and hand the connection over."""
        try:
            asked = read_query(request.query)
        except CodecError as error:
            return self._body(exchange, 400, f"{error}\n".encode(), "text/plain")
        if not self._authenticator.is_here(asked.to):
            return self._body(exchange, 410, b"another lifetime answers here\n", "text/plain")
        if not self._authenticator.is_job(asked.job):
            return self._body(exchange, 403, b"this is a member of another job\n", "text/plain")
        return self._pass_on(request, exchange, asked.key(exchange), stream=True)

    def _pass_on(
        self, request: web.BaseRequest, exchange: Exchange | None, key: bytes, *, stream: bool = False
    ) -> web.StreamResponse:
        """Hand the connection to the training process, which makes the body, and forget it here."""
        transport = request.transport
        if transport is not None:
            inner = transport.get_extra_info("socket")
            connection = socket.socket(fileno=os.dup(inner.fileno()))
            transport.abort()  # closes our descriptor only: the connection lives on in the duplicate
            headers = self._authenticator.headers(exchange)
            self._hand_over(connection, Request(request.path, dict(request.query), headers, key, stream=stream))
        return web.Response(status=204)  # is not sent


class HttpClient:
    """Posts packets and fence requests; one session for the agent's life."""

    def __init__(self) -> None:
        """Call on the loop's thread."""
        self._session: aiohttp.ClientSession | None = None
        self._posts: dict[Address, int] = {}
        self._answered: set[Address] = set()
        """The addresses that have answered what came there last."""

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_CONNECTIONS), auto_decompress=False)
        return self._session

    async def post(self, address: Address, data: bytes) -> bool:
        """POST a packet. Returns whether it was taken; an error or a full queue loses the message, as on UDP."""
        flying = self._posts.get(address, 0)
        if flying >= (_POSTS_IN_FLIGHT if address in self._answered else _UNANSWERED):
            return False
        self._posts[address] = flying + 1
        url = f"http://{format_address(address)}/message"
        try:
            limit = aiohttp.ClientTimeout(total=_POST_TIMEOUT, sock_connect=_CONNECT_TIMEOUT)
            async with self._open().post(url, data=io.BytesIO(data), timeout=limit) as response:
                self._note(address, answered=True)
                return response.status == 204
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            self._note(address, answered=False)
            return False
        finally:
            if self._posts[address] == 1:
                del self._posts[address]
            else:
                self._posts[address] -= 1

    def _note(self, address: Address, *, answered: bool) -> None:
        if not answered:
            self._answered.discard(address)
        elif address not in self._answered:
            if len(self._answered) >= _ANSWERED:
                self._answered.clear()
            self._answered.add(address)

    async def fence(self, supervisor: str, request: Mapping[str, Any], key: Key | None = None) -> Mapping[str, Any]:
        """POST a fence request to a supervisor and return its answer; raises OSError if none comes in time.

        ``key``: proves to the supervisor that a member asks; its answer is believed only with a proof under the same key.
        """
        limit = aiohttp.ClientTimeout(total=_FENCE_TIMEOUT)
        url = f"http://{supervisor}/fence"
        facts = (request.get("job"), request.get("pid"), request.get("member"), secrets.token_hex(16))
        signed = {**request} if key is None else {**request, "nonce": facts[-1], "mac": key.vouch("fence", *facts)}
        try:
            async with self._open().post(url, json=signed, timeout=limit) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise OSError(f"the supervisor answered {answer!r:.80}")
        if key is not None and answer.get("mac") != key.vouch("fenced", *facts, answer.get("reaped"), answer.get("gone_ms")):
            raise OSError(f"the answer is not signed with this job's secret: {answer!r:.80}")
        return answer

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
