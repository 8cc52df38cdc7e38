"""The HTTP side of an agent, on the same port number as UDP: big messages, tethers, status, and what the layer above
serves.

``POST /message`` takes a packet (204). ``GET /tether`` answers with this lifetime's id and is then held open: it
closes when the process dies, which is what the other side waits for. ``GET /identity`` says who listens here, to
members of any job and version. ``GET /status`` is JSON, ``GET /metrics`` the same for Prometheus. Further GET paths come from
``serve``.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from ..codec import MAX_BYTES
from ..member import Address, format_address
from ..metrics import CONTENT_TYPE, render
from .sources import Request

__all__ = ["HttpClient", "HttpServer"]

_HELD_POLL = 0.02
_ACCEPT_TURNS = 3
"""Turns of the loop from accepting a connection to ``connection_made``."""

_POST_TIMEOUT = 5.0
_FENCE_TIMEOUT = 10.0
_POSTS_IN_FLIGHT = 16
"""To one address; more are dropped, as a full socket buffer would do it."""


HandOver = Callable[[socket.socket, Request], None]
"""Has a connection answered elsewhere; it is owned from then on."""


class HttpServer:
    """Serves one listening socket. Everything here runs on the loop's thread."""

    def __init__(
        self,
        headers: Mapping[str, str],
        received: Callable[[bytes, str], None],
        status: Callable[[], Awaitable[Mapping[str, Any]]],
        served: Callable[[], frozenset[str]],
        hand_over: HandOver,
        *,
        held: Callable[[], bool] = lambda: False,
        limit: int = MAX_BYTES,
    ) -> None:
        """``headers`` say who answers. ``received(packet, source)``. ``served``: the paths that ``hand_over`` answers.

        While ``held`` nothing is answered, as by a process that is stopped.
        """
        self._headers = dict(headers)
        self._received = received
        self._status = status
        self._served = served
        self._hand_over = hand_over
        self._held = held
        self._limit = limit
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._closing = asyncio.Event()

    async def open(self, sock: socket.socket) -> None:
        """Take over the listening ``sock``."""
        loop = asyncio.get_running_loop()

        def request(*args: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = args
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._limit)

        self._web = web.Server(self._handle, request_factory=request, handler_cancellation=True, access_log=None)
        self._server = await loop.create_server(self._web, sock=sock, backlog=512)

    async def close(self) -> None:
        """Refuse new connections, then end the open ones. Idempotent."""
        self._closing.set()
        if self._server is not None:
            self._server.close()
            for _ in range(_ACCEPT_TURNS):  # a connection accepted just now is made known to the server by then
                await asyncio.sleep(0)
        if self._web is not None:
            await self._web.shutdown(timeout=0.05)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        while self._held():  # noqa: ASYNC110 - the kernel offers no event for a process that is continued
            await asyncio.sleep(_HELD_POLL)
        try:
            if request.method == "POST" and request.path == "/message":
                self._received(await request.read(), request.remote or "?")
                return web.Response(status=204)
            if request.method == "GET":
                return await self._get(request)
        except web.HTTPException as refusal:
            return web.Response(status=refusal.status, text=refusal.reason)
        return web.Response(status=405)

    async def _get(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/tether":
            return await self._tether(request)
        if request.path == "/identity":
            return web.Response(status=204, headers=self._headers)
        if request.path in self._served():
            return self._pass_on(request)
        if request.path == "/status":
            text = json.dumps(dict(await self._status()), default=str)
            return web.Response(text=text, content_type="application/json", headers=self._headers)
        if request.path == "/metrics":
            body = await asyncio.to_thread(render, await self._status())
            return web.Response(body=body, headers={**self._headers, "Content-Type": CONTENT_TYPE})
        return web.Response(status=404, text=f"nothing is served at {request.path}\n")

    async def _tether(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        await response.prepare(request)
        await self._closing.wait()  # cancelled when the client goes
        return response

    def _pass_on(self, request: web.BaseRequest) -> web.StreamResponse:
        """Have the connection answered by whoever makes the body, and forget it here."""
        transport = request.transport
        if transport is not None:
            inner = transport.get_extra_info("socket")
            connection = socket.socket(fileno=os.dup(inner.fileno()))
            transport.abort()  # closes our descriptor only: the connection lives on in the duplicate
            self._hand_over(connection, Request(request.path, dict(request.query), self._headers))
        return web.Response(status=204)  # goes nowhere


class HttpClient:
    """Posts packets and fence requests; one session for the agent's life."""

    def __init__(self) -> None:
        """Call on the loop's thread."""
        self._session: aiohttp.ClientSession | None = None
        self._posts: dict[Address, int] = {}

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        return self._session

    async def post(self, address: Address, data: bytes) -> bool:
        """POST a packet; whether it was taken. Errors and a full queue are a lost message, as on UDP."""
        flying = self._posts.get(address, 0)
        if flying >= _POSTS_IN_FLIGHT:
            return False
        self._posts[address] = flying + 1
        url = f"http://{format_address(address)}/message"
        try:
            limit = aiohttp.ClientTimeout(total=_POST_TIMEOUT)
            async with self._open().post(url, data=io.BytesIO(data), timeout=limit) as response:
                return response.status == 204
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return False
        finally:
            if self._posts[address] == 1:
                del self._posts[address]
            else:
                self._posts[address] -= 1

    async def fence(self, supervisor: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """POST a fence request to a supervisor and return its answer; OSError where there is none in time."""
        limit = aiohttp.ClientTimeout(total=_FENCE_TIMEOUT)
        try:
            async with self._open().post(f"http://{supervisor}/fence", json=dict(request), timeout=limit) as response:
                answer = await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise OSError(f"the supervisor answered {answer!r:.80}")
        return answer

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
