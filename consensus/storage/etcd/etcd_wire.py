"""The connections to an etcd cluster: its JSON gateway over HTTP, and what its errors mean for a store.

A request goes to one endpoint, the one that answered last; if that cannot be reached, to the next. A read goes on to the next
endpoint after any failure, a write only while it is certain that nothing was done: a write that was sent and not answered, or
answered with "timed out", is ambiguous. In both cases the failed endpoint is asked last from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import ClientResponse as Response

from ...errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from ...member import format_address
from ..server_store import ODD_ANSWER
from ..server_url import ServerUrl, tls_trouble

_CONNECTIONS = 16
_QUIET = 30.0
"""A watch that received nothing for so many seconds is made again: nothing may have changed, or the server may have vanished
silently, which making it shows."""

_MAX_LINE = 1 << 24
"""The most bytes of one message of a watch."""

_LEADER = {"Grpc-Metadata-hasleader": "true"}
"""With this header a server without a leader says so at once, and ends its watches, instead of letting clients wait."""

_CONNECT_SHARE = 0.8
"""The share of the time for one server that connecting may take."""

_INVALID, _NOT_FOUND, _PERMISSION, _EXHAUSTED, _PRECONDITION, _OUT_OF_RANGE, _UNIMPLEMENTED = 3, 5, 7, 8, 9, 11, 12
_UNAUTHENTICATED = 16
_UNASKED = -1
"""Not a gRPC code: an error found here, before anything was sent."""
_DECISIONS = frozenset(
    {_INVALID, _NOT_FOUND, _PERMISSION, _EXHAUSTED, _PRECONDITION, _OUT_OF_RANGE, _UNIMPLEMENTED, _UNAUTHENTICATED}
)
"""Codes after which a write was certainly not done; after all others (unknown, deadline, internal, unavailable) it may be."""

_TOKEN = ("invalid auth token", "auth store is old")
"""The token has expired, the server has restarted, or rights have changed since the token was made."""

_LASTING = {
    "user name is empty": "it asks for a user, write etcd://user:password@host:port",
    "authentication failed": "the user name or the password is wrong",
    "authentication is not enabled": "it has no users, leave user and password out of the URL or enable its authentication",
    "permission denied": "this user may not do that, grant its role readwrite on the prefix /ftlib/",
    "request is too large": "raise its --max-request-bytes",
}
_PASSING = {
    "database space exceeded": "it is full: compact and defragment it, raise its quota, then etcdctl alarm disarm",
    "no leader": "its members have no quorum",
    "too many requests": "it is overloaded",
}


class LeaseGoneError(StoreError):
    """The lease of a write has expired; nothing was written."""


class _AnsweredError(Exception):
    """An error of etcd itself, by its gRPC code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.token = code == _UNAUTHENTICATED or any(part in text for part in _TOKEN)
        """Whether only the token is invalid."""


@dataclass
class _Endpoint:
    """One server. ``prefix``: the path of its gateway, known once the server was asked for its version."""

    url: str
    prefix: str = ""


class EtcdWire:
    """Requests to one cluster. Every call is bounded by ``timeout`` seconds and raises only errors of ``StoreError``."""

    def __init__(self, url: ServerUrl, timeout: float) -> None:
        """Connects with the first request, which needs a running event loop."""
        self._url = url
        self._timeout = timeout
        self._context: ssl.SSLContext | bool = url.context() if url.tls else True
        scheme = "https" if url.tls else "http"
        self._endpoints = [_Endpoint(f"{scheme}://{format_address(server)}") for server in url.servers]
        self._session: aiohttp.ClientSession | None = None
        self._token = ""
        self._closed = False

    async def close(self) -> None:
        """End all connections; later requests fail with an error that says so. Idempotent."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def ask(self, path: str, body: Mapping[str, Any], *, write: bool) -> dict[str, Any]:
        """The answer to a POST of ``body`` to ``path`` (as ``kv/range``)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        trouble: StoreError | None = None
        for tried, endpoint in enumerate(list(self._endpoints)):
            left = deadline - loop.time()
            share = left / (len(self._endpoints) - tried)
            sent = False
            try:
                async with asyncio.timeout(share) as limit:
                    await self._prepare(endpoint, share)
                    sent = write
                    if write:
                        limit.reschedule(deadline)  # once the write is sent, no other endpoint may be asked
                    return await self._ask_one(endpoint, path, body, share)
            except (_AnsweredError, aiohttp.ClientError, OSError, TimeoutError, *ODD_ANSWER) as error:
                trouble = self._translate(error, ambiguous=sent)
            if isinstance(trouble, StoreAwayError | AmbiguousWriteError):
                self._demote(endpoint)
            if not isinstance(trouble, StoreAwayError):
                break
        assert trouble is not None
        raise trouble

    async def listen(self, body: Mapping[str, Any], received: Callable[[dict[str, Any]], None]) -> None:
        """Make a watch of ``body`` and call ``received`` with each result, until it fails or has been quiet for long."""
        endpoint = self._endpoints[0]
        limit, made = asyncio.timeout(self._timeout), False
        try:
            async with limit:
                await self._prepare(endpoint, self._timeout)
                async with self._post(endpoint, "watch", body, self._timeout) as response:
                    async for line in _lines(response):
                        received(_result(line))
                        made = True
                        limit.reschedule(asyncio.get_running_loop().time() + _QUIET)
            raise OSError("the watch was ended")
        except (_AnsweredError, aiohttp.ClientError, OSError, TimeoutError, *ODD_ANSWER) as error:
            if made and limit.expired():
                return
            self._token = ""  # etcd cancels a watch with an outdated token, without a reason
            self._demote(endpoint)
            raise self._translate(error, ambiguous=False) from None

    async def _prepare(self, endpoint: _Endpoint, share: float) -> None:
        """Find out the path of its gateway, and authenticate if a user is given."""
        if not endpoint.prefix:
            endpoint.prefix = await self._find_gateway(endpoint, share)
        if self._url.username and not self._token:
            body = {"name": self._url.username, "password": self._url.password}
            async with self._post(endpoint, "auth/authenticate", body, share) as response:
                answer = await response.read()
            try:
                self._token = str(_result(answer)["token"])
            except ODD_ANSWER:
                raise _no_answer(answer) from None

    async def _find_gateway(self, endpoint: _Endpoint, share: float) -> str:
        async with self._open().get(f"{endpoint.url}/version", timeout=_limits(share)) as response:
            answer = await response.read()
        try:
            text = str(json.loads(answer)["etcdserver"])
            version = tuple(int(part) for part in text.split(".")[:2])
        except ODD_ANSWER:
            raise _no_answer(answer) from None
        if version < (3, 3):
            raise _AnsweredError(_PRECONDITION, f"etcd {text} is too old, 3.3 or newer is needed")
        return "v3beta" if version == (3, 3) else "v3"

    async def _ask_one(self, endpoint: _Endpoint, path: str, body: Mapping[str, Any], share: float) -> dict[str, Any]:
        """Send the request; once more if only the token was invalid, since then nothing was done."""
        for last in (False, True):
            async with self._post(endpoint, path, body, share) as response:
                answer = await response.read()
            try:
                return _result(answer)
            except _AnsweredError as error:
                if last or not (error.token and self._url.username):
                    raise
            self._token = ""
            await self._prepare(endpoint, share)
        raise AssertionError

    @contextlib.asynccontextmanager
    async def _post(self, endpoint: _Endpoint, path: str, body: Mapping[str, Any], share: float) -> AsyncIterator[Response]:
        headers = {**_LEADER, "Authorization": self._token} if self._token else _LEADER
        data = io.BytesIO(json.dumps(body).encode())
        url = f"{endpoint.url}/{endpoint.prefix}/{path}"
        async with self._open().post(
            url, data=data, headers=headers, timeout=_limits(share), allow_redirects=False
        ) as response:
            if response.status == 404 and response.content_type != "application/json":
                endpoint.prefix = ""
                raise _AnsweredError(_UNASKED, "its JSON gateway is not there, is it off (--enable-grpc-gateway)?")
            yield response

    def _open(self) -> aiohttp.ClientSession:
        if self._closed:
            raise _AnsweredError(_UNASKED, "it was closed here")
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=self._context)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    def _demote(self, endpoint: _Endpoint) -> None:
        """Ask ``endpoint`` last from now on."""
        self._endpoints.remove(endpoint)
        self._endpoints.append(endpoint)

    def _translate(self, error: Exception, *, ambiguous: bool) -> StoreError:
        """What ``error`` means. ``ambiguous``: a write was on its way."""
        text = " ".join(self._url.hide(str(error)).split()) or type(error).__name__
        if isinstance(error, _AnsweredError):
            return self._meaning(error, text, ambiguous=ambiguous)
        if (reason := tls_trouble(error)) is not None:
            return StoreRefusedError(f"the store {self._url}: {reason} ({text})")
        if ambiguous and not isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
            return AmbiguousWriteError(f"the store {self._url} did not answer to a write within {self._timeout:g} s: {text}")
        within = f" within {self._timeout:g} s" if isinstance(error, TimeoutError) else ""
        return StoreAwayError(f"the store {self._url} was not reached{within}: {text}")

    def _meaning(self, error: _AnsweredError, text: str, *, ambiguous: bool) -> StoreError:
        for kind, meanings in ((StoreAwayError, _PASSING), (StoreRefusedError, _LASTING)):
            for part, remedy in meanings.items():
                if part in text:
                    return kind(f"the store {self._url}: {remedy} ({text})")
        if error.code == _NOT_FOUND and "lease" in text:
            return LeaseGoneError(f"the store {self._url}: {text}")
        if error.code in _DECISIONS:
            return StoreRefusedError(f"the store {self._url} refuses: {text}")
        if ambiguous and error.code != _UNASKED:
            return AmbiguousWriteError(f"the store {self._url} may have done a write or not: {text}")
        return StoreAwayError(f"the store {self._url}: {text}")


def _limits(share: float) -> aiohttp.ClientTimeout:
    """The caller bounds the whole request; the limit for connecting tells a missing connection from a missing answer."""
    return aiohttp.ClientTimeout(total=None, connect=_CONNECT_SHARE * share)


def _result(data: bytes) -> dict[str, Any]:
    """The result in a message of the gateway; raises ``_AnsweredError`` if it is an error."""
    try:
        answer: dict[str, Any] = json.loads(data)
        error = answer.get("error")
        result: dict[str, Any] = answer.get("result", answer)  # the former in a stream
        facts: dict[str, Any] = error if isinstance(error, dict) else answer  # the former in a stream
        code = int(facts.get("grpc_code") or facts.get("code") or 2)
    except ODD_ANSWER:
        raise _no_answer(data) from None
    if not isinstance(result, dict):
        raise _no_answer(data)
    if error is not None:
        raise _AnsweredError(code, str(facts.get("message", error)))
    return result


def _no_answer(data: bytes) -> ValueError:
    return ValueError(f"this is no answer of etcd: {data[:80]!r}")


async def _lines(response: Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _MAX_LINE:
            raise ValueError("a message of the watch is too long")
