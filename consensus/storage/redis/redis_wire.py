"""The connections to a Redis server, and what its errors mean for a store.

A command is sent once. redis-py would repeat it after an error, and nobody could tell whether a silently repeated write was
done; so its retries are off. A failure before the command was sent did nothing; a failure between sending and the answer is
ambiguous if the command was a write; an answer settles the command, even if the answer is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from redis import exceptions as errors
from redis.asyncio import BlockingConnectionPool, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ...errors import AmbiguousWriteError, StoreAwayError, StoreError, StoreRefusedError
from ..server_store import ODD_ANSWER
from ..server_url import ServerUrl, tls_trouble

_CONNECTIONS = 8
"""The most connections at a time; further commands wait for one."""

_QUIET = 5.0
"""A watch that received nothing for so many seconds pings the server."""

_KINDS: tuple[tuple[type[Exception], str], ...] = (
    (errors.BusyLoadingError, "LOADING"),
    (errors.OutOfMemoryError, "OOM"),
    (errors.ReadOnlyError, "READONLY"),
    (errors.NoPermissionError, "NOPERM"),
    (errors.MasterDownError, "MASTERDOWN"),
    (errors.ClusterDownError, "MOVED"),
    (errors.ClusterCrossSlotError, "MOVED"),
    (errors.TryAgainError, "MOVED"),
    (errors.AskError, "MOVED"),
)
"""The codes of the errors for which redis-py has a class: it cuts the code off their text."""

_PASSING = {
    "LOADING": "it still reads its data from disk",
    "OOM": "its memory is full, raise its maxmemory",
    "MISCONF": "it cannot save to its disk, see its log",
    "NOREPLICAS": "its min-replicas-to-write is not met",
    "BUSY": "a script of somebody else keeps it busy",
    "MASTERDOWN": "it is a replica without its primary",
    "READONLY": "it is a replica, make it the primary again or start the job with the URL of the primary",
}
"""Codes of errors that may pass. Nothing was done."""

_LASTING = {
    "NOAUTH": "it asks for a password, write redis://user:password@host:port",
    "NEEDLESS": "it has no such password, leave it out of the URL or set requirepass",
    "WRONGPASS": "the user name or the password is wrong",
    "NOPERM": "this user may not do that, allow ~ftlib:* &ftlib:* +@all -@dangerous +info",
    "MOVED": "it is part of a Redis Cluster, which is not supported: use a single server",
    "WRONGTYPE": "something else uses the keys of this job, use another job name or database number",
}

_CODE = re.compile(rf"(?:^|[:\s]-)({'|'.join((*_PASSING, *_LASTING))})\b")
"""Before Redis 7 the code of an error in a script stands somewhere in its text."""


class Script:
    """Lua that runs as one transaction, sent by its digest if the server knows the script."""

    def __init__(self, text: str) -> None:
        """``text``: the Lua source."""
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisWire:
    """Commands to one server. Every call is bounded by ``timeout`` seconds and raises only errors of ``StoreError``."""

    def __init__(self, url: ServerUrl, timeout: float) -> None:
        """Connects with the first command."""
        self._url = url
        self._timeout = timeout
        self._closed = False
        common: dict[str, Any] = {
            "username": url.username or None,
            "password": url.password or None,
            "db": int(url.database or 0),
            "socket_timeout": None,  # bounded here: redis-py's wait_for can lose a cancellation before Python 3.12
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,  # every version speaks it, and its subscriptions need no pushes
        }
        if url.scheme == "unix":
            kind: type[Any] = UnixDomainSocketConnection
            common["path"] = url.path
        else:
            kind = SSLConnection if url.tls else Connection
            common["host"], common["port"] = url.servers[0]
        if url.tls:
            url.context()  # raises if a file is bad
            common |= {"ssl_ca_certs": url.ca or None, "ssl_certfile": url.cert or None, "ssl_keyfile": url.key or None}
            common |= {"ssl_check_hostname": True, "ssl_cert_reqs": "required"}
        self._pool = BlockingConnectionPool(connection_class=kind, max_connections=_CONNECTIONS, timeout=None, **common)

    async def close(self) -> None:
        """End all connections; later commands fail with an error that says so. Idempotent."""
        self._closed = True
        with contextlib.suppress(errors.RedisError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self._pool.disconnect()

    async def ask(self, *command: str | bytes | int, write: bool) -> Any:
        """The answer to one command."""
        async with self._exchange(write) as exchange:
            return await exchange(*command)

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[str | bytes], *, write: bool) -> Any:
        """The answer of one script."""
        async with self._exchange(write) as exchange:
            try:
                return await exchange("EVALSHA", script.digest, len(keys), *keys, *arguments)
            except errors.NoScriptError:  # an answer: it did not run
                return await exchange("EVAL", script.text, len(keys), *keys, *arguments)

    async def listen(self, channel: str, received: Callable[[bytes], None]) -> None:
        """Call ``received`` with b"" once subscribed, then with every message, until it fails."""
        try:
            async with asyncio.timeout(self._timeout) as limit, self._connection() as connection:
                try:
                    await connection.send_command("SUBSCRIBE", channel)
                    await connection.read_response()
                    limit.reschedule(None)
                    received(b"")
                    while True:
                        answer = await connection.read_response(timeout=_QUIET)
                        if answer is None:
                            limit.reschedule(asyncio.get_running_loop().time() + self._timeout)
                            await connection.send_command("PING")
                            answer = await connection.read_response()
                            limit.reschedule(None)
                        if answer[0] == b"message":
                            received(answer[2])
                finally:
                    await connection.disconnect(nowait=True)  # subscribed, so no other command can use it
        except (errors.RedisError, OSError, TimeoutError, *ODD_ANSWER) as error:
            raise self._translate(error, ambiguous=False) from None

    @contextlib.asynccontextmanager
    async def _exchange(self, write: bool) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        sent = False
        if self._closed:
            raise StoreAwayError(f"the store {self._url} was closed here")
        try:
            async with asyncio.timeout(self._timeout), self._connection() as connection:

                async def exchange(*command: str | bytes | int) -> Any:
                    nonlocal sent
                    sent = True
                    await connection.send_command(*command)
                    return await connection.read_response()

                yield exchange
        except (errors.RedisError, OSError, TimeoutError, *ODD_ANSWER) as error:
            raise self._translate(error, ambiguous=write and sent) from None

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    def _translate(self, error: Exception, *, ambiguous: bool) -> StoreError:
        """What ``error`` means. ``ambiguous``: a write was on its way."""
        text = " ".join(self._url.hide(str(error)).split()) or type(error).__name__
        code = _code(error)
        if code in _PASSING:
            return StoreAwayError(f"the store {self._url}: {_PASSING[code]} ({text})")
        if code in _LASTING:
            return StoreRefusedError(f"the store {self._url}: {_LASTING[code]} ({text})")
        if isinstance(error, errors.ResponseError):
            return StoreRefusedError(f"the store {self._url} refuses: {text}")
        if (reason := tls_trouble(error)) is not None:
            return StoreRefusedError(f"the store {self._url}: {reason} ({text})")
        if isinstance(error, ODD_ANSWER):
            text = f"this is no answer of Redis ({type(error).__name__}: {text})"
        if ambiguous:
            return AmbiguousWriteError(f"the store {self._url} did not answer to a write within {self._timeout:g} s: {text}")
        within = f" within {self._timeout:g} s" if isinstance(error, (errors.TimeoutError, TimeoutError)) else ""
        return StoreAwayError(f"the store {self._url} was not reached{within}: {text}")


def _code(error: Exception) -> str:
    text = str(error)
    if isinstance(error, errors.AuthenticationError):
        if "no password is set" in text or "without any password" in text:
            return "NEEDLESS"
        return "NOAUTH" if "required" in text else "WRONGPASS"
    for kind, code in _KINDS:
        if isinstance(error, kind):
            return code
    if isinstance(error, errors.ResponseError) and (match := _CODE.search(text)):
        return match[1]
    return ""
