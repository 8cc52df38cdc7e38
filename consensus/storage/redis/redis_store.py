"""A store in a Redis server: ``redis://[[user]:password@]host[:port][/database]``, ``rediss://`` with TLS, ``unix://``.

Values are strings, one a key; one sorted set holds all their names. A listing reads exactly its part of that set and the values
of these names, in one script and at one moment, whatever else fills the server (SCAN would walk through all of it). The next
listing removes names whose value has expired. Compacted revisions are fields of one hash. Every change is one script, which
Redis runs as one transaction.

Watching is a subscription. Published are: every value created, written to stay, or deleted; every compaction; and a value
that may expire when it appears, but not when it is renewed, since that is only a heartbeat.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping

from ...errors import ConfigError, StoreError
from ..server_store import ServerStore
from ..server_url import parse_server_url
from ..store import TIMEOUT, Created, Unreadable, Value, check_key, check_prefix, check_value, is_key, too_large
from .redis_scripts import SCRIPTS

_PORT = 6379
_DATABASES = 1 << 31


class RedisStore(ServerStore):
    """One job in one database of one Redis server (5 or newer)."""

    def __init__(self, url: str, job: str, *, timeout: float = TIMEOUT, **given: str) -> None:
        """``timeout``: seconds for one operation, connecting included. ``given``: see ``parse_server_url``.

        Raises ConfigError if ``url`` cannot be parsed, or a file that it names or redis-py is missing.
        """
        parsed = parse_server_url(url, ("redis", "rediss", "unix"), _PORT, **given)
        if len(parsed.servers) > 1:
            raise ConfigError(f"the store {parsed}: name one server; Redis Cluster and Sentinel are not supported")
        if parsed.database and not (parsed.database.isdecimal() and int(parsed.database) < _DATABASES):
            raise ConfigError(f"the store {parsed}: the database is a number, as in redis://host:{_PORT}/0")
        try:
            from . import redis_wire  # noqa: PLC0415 - an extra: only who uses it needs it
            from .redis_check import check  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ConfigError(f"the store {parsed} needs redis-py: pip install ftlib[redis] ({error})") from None
        self._check = check
        self._wire = redis_wire.RedisWire(parsed, timeout)
        super().__init__(parsed, job, self._wire)
        self._scripts = {name: redis_wire.Script(text) for name, text in SCRIPTS.items()}
        base = f"ftlib:{{{self._job}}}:"
        self._names, self._compactions = f"{base}names", f"{base}floors"
        self._channel, self._values = f"{base}news", f"{base}value:"

    async def open(self) -> None:
        """See ``Store``. Refuses a server that may evict decisions or is no primary; warns of one that may lose decisions."""
        self.operations += 2
        await self._check(self._wire, self.url)
        await self._wire.run(self._scripts["probe"], [f"{self._values}probe"], [self._channel], write=False)

    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        """See ``Store``."""
        check_value(check_key(key), value)
        self.operations += 1
        if number is not None and number < 0:
            return Created.BELOW  # of every compacted revision
        keys = [self._values + key, self._names, self._compactions]
        least = "" if number is None else str(number)
        answer = await self._wire.run(self._scripts["create"], keys, [self._channel, key, value, least, series], write=True)
        return {b"done": Created.DONE, b"exists": Created.EXISTS, b"below": Created.BELOW}[answer]

    async def read(self, key: str) -> Value | None:
        """See ``Store``."""
        name = self._values + check_key(key)
        self.operations += 1
        return self._value(key, await self._wire.run(self._scripts["read"], [name], [], write=False))

    def _value(self, key: str, found: bytes | list[bytes] | None) -> Value | None:
        """What the scripts' ``look`` found at ``key``."""
        if not isinstance(found, list):
            return found
        if found[0] == b"size":
            return too_large(key)
        return Unreadable(f"{self._values}{key} is no string: DEL it, no member made it")

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """See ``Store``. With ``expires``, watchers are notified only when the value appears."""
        check_value(check_key(key), value)
        self.operations += 1
        life = "" if expires is None else str(max(1, math.ceil(expires * 1000)))
        keys = [self._values + key, self._names]
        await self._wire.run(self._scripts["write"], keys, [self._channel, key, value, life], write=True)

    async def delete(self, *keys: str) -> None:
        """See ``Store``. One transaction."""
        names = [self._names, *(self._values + check_key(key) for key in keys)]
        self.operations += len(keys)
        if keys:
            await self._wire.run(self._scripts["delete"], names, [self._channel, *keys], write=True)

    async def list(self, prefix: str) -> Mapping[str, Value]:
        """See ``Store``. As of one moment."""
        span = (f"[{check_prefix(prefix)}", f"({prefix[:-1]}0")  # "0" comes right after "/": between the two is the prefix
        try:
            answer = await self._wire.run(self._scripts["list"], [self._names], [self._values, *span], write=False)
        except StoreError:
            self.operations += 1
            raise
        self.operations += max(1, len(answer) // 2)
        found = ((name.decode("utf-8", "replace"), value) for name, value in zip(answer[::2], answer[1::2], strict=True))
        return {name: value for name, what in found if is_key(name) and (value := self._value(name, what)) is not None}

    async def compacted(self, series: str) -> int:
        """See ``Store``."""
        self.operations += 1
        found = await self._wire.ask("HGET", self._compactions, series, write=False)
        return self._parse_compacted(series, found or b"0")

    async def compact(self, series: str, number: int) -> int:
        """See ``Store``."""
        if number <= 0:
            return await self.compacted(series)
        self.operations += 1
        arguments = [self._channel, series, str(number)]
        found = await self._wire.run(self._scripts["compact"], [self._compactions], arguments, write=True)
        return self._parse_compacted(series, found)

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store``. Heartbeats (values that expire, written again) are not noticed; a compaction is, as ``series/``."""
        wanted = check_prefix(prefix).encode()

        async def listen(tell: Callable[[], None]) -> None:
            def received(name: bytes) -> None:
                if not name or name.startswith(wanted):
                    tell()

            await self._wire.listen(self._channel, received)

        return self._watches.follow(listen)
