"""The HTTP side of an agent, on the same port number as UDP: big messages, tethers, status, and what the layer above
serves.

``POST /message`` takes a packet (204); everything else passes the ``gate`` first. ``GET /tether`` answers with this
lifetime's id and is then held open: it closes when the process dies, which is what the other side waits for.
``GET /identity`` says who listens here, to members of any job and version. ``GET /status`` is JSON. Further GET paths
come from ``serve``. With a secret, bodies are sealed in frames (see ``proofs``).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from ..codec import MAX_BYTES
from ..envelope import Sealer
from ..interface import Source
from ..keys import Key
from ..member import Address, format_address
from ..proofs import Exchange
from .gate import Gate, QuietServer, RefusedError

__all__ = ["HttpClient", "HttpServer"]

_LOG = logging.getLogger("ftlib.consensus")
_PIECE = 1 << 20
_SOURCES = 32
"""At most so many bodies are served at a time."""

_CHUNK_TIMEOUT = 60.0
_READ_TIMEOUT = 5.0
"""Seconds for the whole of a message to come in."""
_READING = 64
"""At most so many messages are read at a time; each has at most 16 MiB."""
_POST_TIMEOUT = 5.0
_FENCE_TIMEOUT = 10.0
_POSTS_IN_FLIGHT = 16
"""To one address; more are dropped, as a full socket buffer would do it."""


class HttpServer:
    """Serves one listening socket. Everything here runs on the loop's thread, except the sources' own iterators."""

    def __init__(
        self,
        gate: Gate,
        received: Callable[[bytes, str], None],
        sealer: Sealer,
        status: Callable[[], Mapping[str, Any]],
        sources: dict[str, Source],
        *,
        limit: int = MAX_BYTES,
    ) -> None:
        """``received(packet, source)``. ``sources``: the owner may add paths to it."""
        self._gate = gate
        self._received = received
        self._sealer = sealer
        self._status = status
        self._sources = sources
        self._limit = limit
        self._serving = 0
        self._reading = 0
        self._server: asyncio.Server | None = None
        self._web: web.Server | None = None
        self._closing = asyncio.Event()

    async def open(self, sock: socket.socket) -> None:
        """Take over the listening ``sock``."""
        loop = asyncio.get_running_loop()

        def request(*args: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = args
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._limit)

        self._web = QuietServer(self._handle, request_factory=request, handler_cancellation=True)
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
                return await self._message(request)
            exchange = self._gate.admit(request)
            if isinstance(exchange, web.Response):
                return exchange
            if request.method == "GET":
                return await self._get(request, exchange)
        except web.HTTPException as refusal:
            return web.Response(status=refusal.status, text=refusal.reason)
        return web.Response(status=405)

    async def _message(self, request: web.BaseRequest) -> web.StreamResponse:
        """Read no more of a message than its beginning is worth."""
        overhead = self._sealer.overhead
        if self._reading >= _READING:
            raise RefusedError
        self._reading += 1
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                data = await (self._read_sealed(request, overhead) if overhead else request.read())
        except TimeoutError:
            raise RefusedError from None
        finally:
            self._reading -= 1
        self._received(data, request.remote or "?")
        return web.Response(status=204)

    async def _read_sealed(self, request: web.BaseRequest, overhead: int) -> bytes:
        """The body, unless its first ``overhead`` bytes tell that it is not worth it."""
        data = bytearray()
        promising = False
        async for piece in request.content.iter_any():
            data += piece
            if not promising and len(data) >= overhead:
                promising = self._sealer.promising(bytes(data[:overhead]))
                if not promising:
                    break
            if len(data) > self._limit:
                raise web.HTTPRequestEntityTooLarge(self._limit, len(data))
        if not promising:
            self._received(bytes(data[:overhead]), request.remote or "?")  # counts it
            raise RefusedError
        return bytes(data)

    async def _get(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        source = self._sources.get(request.path)
        if request.path == "/tether":
            return await self._tether(request, exchange)
        if request.path == "/identity":
            return web.Response(status=204, headers=self._gate.headers(exchange))
        if source is not None:
            return await self._stream(request, source, exchange)
        if request.path == "/status":
            text = json.dumps(dict(self._status()), default=str)
            return self._text(exchange, 200, text, "application/json")
        return self._text(exchange, 404, f"nothing is served at {request.path}\n")

    def _text(self, exchange: Exchange | None, status: int, text: str, kind: str = "text/plain") -> web.Response:
        body = text.encode()
        if exchange is not None:
            body, kind = _sealed(exchange, status, body), "application/octet-stream"
        return web.Response(status=status, body=body, content_type=kind, headers=self._gate.headers(exchange))

    async def _tether(self, request: web.BaseRequest, exchange: Exchange | None) -> web.StreamResponse:
        response = web.StreamResponse(headers=self._gate.headers(exchange))
        await response.prepare(request)
        await self._closing.wait()  # cancelled when the client goes
        return response

    async def _stream(self, request: web.BaseRequest, source: Source, exchange: Exchange | None) -> web.StreamResponse:
        """Pull the source on a thread of its own and write its chunks as the client takes them.

        An error before the first chunk becomes a status; later the connection is cut: the client sees a torn body.
        """
        if self._serving >= _SOURCES:
            return self._text(exchange, 503, "too many transfers at a time; ask again\n")
        self._serving += 1
        body = _Body(request, source, self._gate.headers(exchange), exchange)
        try:
            error = await body.run()
            if error is None:
                return body.response
            if isinstance(error, LookupError):
                return self._text(exchange, 409, f"{error.args[0] if error.args else error}\n")
            return self._text(exchange, 500, f"{type(error).__name__}: {error}\n")
        finally:
            body.cancel()
            self._serving -= 1


def _sealed(exchange: Exchange, status: int, body: bytes) -> bytes:
    """A whole body, in frames."""
    frames = exchange.frames(status)
    pieces = [frames.seal(body[start : start + _PIECE]) for start in range(0, len(body), _PIECE)]
    return b"".join([*pieces, frames.seal(b"", last=True)])


class _Body:
    """One response whose chunks come from a worker thread."""

    def __init__(self, request: web.BaseRequest, source: Source, headers: Mapping[str, str], exchange: Exchange | None) -> None:
        self._request = request
        self._source = source
        self._query = dict(request.query)
        self.response = web.StreamResponse(headers=headers)
        self._frames = None if exchange is None else exchange.frames(200)
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[BaseException | None] = self._loop.create_future()
        self._cancelled = threading.Event()

    async def run(self) -> BaseException | None:
        """Serve; returns when the last chunk was written, or with what kept the first one from coming."""
        threading.Thread(target=self._pull, name="ftlib-serve", daemon=True).start()
        error = await self._done
        if error is None:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            return None
        if self.response.prepared:
            _LOG.warning("serving %s ended early: %s", self._request.path, error)
            if self._request.transport is not None:
                self._request.transport.abort()
            return None
        if not isinstance(error, LookupError):
            _LOG.error("serving %s failed", self._request.path, exc_info=error)
        return error

    def cancel(self) -> None:
        """The client has gone, or all was written: the worker stops at its next chunk."""
        self._cancelled.set()

    def _pull(self) -> None:
        error: BaseException | None = None
        chunks: Iterator[bytes | memoryview] | None = None
        try:
            chunks = self._source(self._query)
            for chunk in chunks:
                for piece in self._pieces(chunk):
                    if self._cancelled.is_set():
                        return
                    self._put(piece)
            if self._frames is not None:
                self._put(self._frames.seal(b"", last=True))
        except BaseException as caught:  # noqa: BLE001 - handed to the loop's thread, which reports it
            error = caught
        finally:
            close = getattr(chunks, "close", None)
            if close is not None:
                close()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._finish, error)

    def _pieces(self, chunk: bytes | memoryview) -> Iterator[bytes | memoryview]:
        view = memoryview(chunk).cast("B") if len(chunk) else memoryview(b"")
        for start in range(0, max(1, len(view)), _PIECE):
            piece = view[start : start + _PIECE]
            yield piece if self._frames is None else self._frames.seal(piece)

    def _put(self, piece: bytes | memoryview) -> None:
        asyncio.run_coroutine_threadsafe(self._write(piece), self._loop).result(_CHUNK_TIMEOUT)

    async def _write(self, piece: bytes | memoryview) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
        if len(piece):
            await self.response.write(piece)

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

    async def fence(self, supervisor: str, request: Mapping[str, Any], key: Key | None = None) -> Mapping[str, Any]:
        """POST a fence request to a supervisor and return its answer; OSError where there is none in time.

        ``key``: shows the supervisor that a member asks, and its answer is believed only if it shows the same.
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
        if key is not None and answer.get("mac") != key.vouch("fenced", *facts, answer.get("reaped")):
            raise OSError(f"the answer is not signed with this job's secret: {answer!r:.80}")
        return answer

    async def close(self) -> None:
        """End all connections. Idempotent."""
        if self._session is not None:
            await self._session.close()
