"""The HTTP side of an agent, on the same port number as UDP: big messages, tethers, status, and what the layer above
serves.

``POST /message`` takes a packet (204). ``GET /tether`` answers with this lifetime's id and is then held open: it
closes when the process dies, which is what the other side waits for. ``GET /identity`` says who listens here, to
members of any job and version. ``GET /status`` is JSON, ``GET /metrics`` the same for Prometheus. Further GET paths come from
``serve``.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from ..codec import MAX_BYTES
from ..interface import Source
from ..member import Address, format_address
from ..metrics import CONTENT_TYPE, render

__all__ = ["HttpClient", "HttpServer"]

_LOG = logging.getLogger("ftlib.consensus")
_PIECE = 1 << 20
_SOURCES = 32
"""At most so many bodies are served at a time."""

_CONTENT_TYPES = {"/status": "application/json", "/metrics": CONTENT_TYPE}
"""Of served paths; the others are plain bytes."""

_CHUNK_TIMEOUT = 60.0
_POST_TIMEOUT = 5.0
_FENCE_TIMEOUT = 10.0
_POSTS_IN_FLIGHT = 16
"""To one address; more are dropped, as a full socket buffer would do it."""


class HttpServer:
    """Serves one listening socket. Everything here runs on the loop's thread, except the sources' own iterators."""

    def __init__(
        self,
        headers: Mapping[str, str],
        received: Callable[[bytes, str], None],
        status: Callable[[], Mapping[str, Any]],
        sources: dict[str, Source],
        *,
        limit: int = MAX_BYTES,
    ) -> None:
        """``headers`` say who answers. ``received(packet, source)``. ``sources``: the owner may add paths to it."""
        self._headers = dict(headers)
        self._received = received
        self._status = status
        self._sources = sources
        self._limit = limit
        self._serving = 0
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
        if self._web is not None:
            await self._web.shutdown(timeout=0.05)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
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
        source = self._sources.get(request.path)
        if request.path == "/tether":
            return await self._tether(request)
        if request.path == "/identity":
            return web.Response(status=204, headers=self._headers)
        if source is not None:
            return await self._stream(request, source)
        if request.path == "/status":
            text = json.dumps(dict(self._status()), default=str)
            return web.Response(text=text, content_type="application/json", headers=self._headers)
        if request.path == "/metrics":
            body = await asyncio.to_thread(render, self._status())
            return web.Response(body=body, headers={**self._headers, "Content-Type": CONTENT_TYPE})
        return web.Response(status=404, text=f"nothing is served at {request.path}\n")

    async def _tether(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._headers)
        await response.prepare(request)
        await self._closing.wait()  # cancelled when the client goes
        return response

    async def _stream(self, request: web.BaseRequest, source: Source) -> web.StreamResponse:
        """Pull the source on a thread of its own and write its chunks as the client takes them.

        An error before the first chunk becomes a status; later the connection is cut: the client sees a torn body.
        """
        if self._serving >= _SOURCES:
            return web.Response(status=503, text="too many transfers at a time; ask again\n")
        self._serving += 1
        body = _Body(request, source, self._headers)
        try:
            return await body.run()
        finally:
            body.cancel()
            self._serving -= 1


class _Body:
    """One response whose chunks come from a worker thread."""

    def __init__(self, request: web.BaseRequest, source: Source, headers: Mapping[str, str]) -> None:
        self._request = request
        self._source = source
        self._query = dict(request.query)
        self._response = web.StreamResponse(headers=headers)
        if request.path in _CONTENT_TYPES:
            self._response.headers["Content-Type"] = _CONTENT_TYPES[request.path]
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._cancelled = threading.Event()

    async def run(self) -> web.StreamResponse:
        """Serve; returns when the last chunk was written."""
        threading.Thread(target=self._pull, name="ftlib-serve", daemon=True).start()
        error = await self._done
        if error is None:
            if not self._response.prepared:
                await self._response.prepare(self._request)
            return self._response
        if self._response.prepared:
            _LOG.warning("serving %s ended early: %s", self._request.path, error, extra={"ftlib_event": "serve"})
            if self._request.transport is not None:
                self._request.transport.abort()
            return self._response
        if isinstance(error, LookupError):
            return web.Response(status=409, text=f"{error.args[0] if error.args else error}\n")
        _LOG.error("serving %s failed", self._request.path, exc_info=error, extra={"ftlib_event": "serve"})
        return web.Response(status=500, text=f"{type(error).__name__}: {error}\n")

    def cancel(self) -> None:
        """The client has gone, or all was written: the worker stops at its next chunk."""
        self._cancelled.set()

    def _pull(self) -> None:
        error: BaseException | None = None
        chunks: Iterator[bytes | memoryview] | None = None
        try:
            chunks = self._source(self._query)
            for chunk in chunks:
                if self._cancelled.is_set():
                    break
                asyncio.run_coroutine_threadsafe(self._write(chunk), self._loop).result(_CHUNK_TIMEOUT)
        except BaseException as caught:  # noqa: BLE001 - handed to the loop's thread, which reports it
            error = caught
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._finish, error)

    async def _write(self, chunk: bytes | memoryview) -> None:
        if not self._response.prepared:
            await self._response.prepare(self._request)
        view = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
        for start in range(0, len(view), _PIECE):
            await self._response.write(view[start : start + _PIECE])

    def _finish(self, error: BaseException | None) -> None:
        if not self._done.done():
            self._done.set_result(error)


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
