"""A store in an etcd cluster: ``etcd://[user:password@]host[:port][,host[:port]...]``, ``etcds://`` with TLS.

It uses the JSON gateway that every etcd from 3.3 on has, so it needs no client library. Creating is one transaction: the key
must not exist, and the compacted revision must be absent or not above the number. Compacted revisions are decimal numbers of
one length, so that etcd's comparison of bytes compares them. (They are keys of the job, and not the compaction of etcd itself.)

Values that may expire share one lease per ``EtcdStore``. Only the writes themselves renew the lease, at most three times in its
life; it lasts twice as long as was asked, so a value outlives its last write by at least ``expires``.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from ...errors import ConfigError
from ..server_store import ServerStore
from ..server_url import parse_server_url
from ..store import TIMEOUT, Created, Value, check_key, check_prefix, check_value, found_value, is_key
from .etcd_wire import EtcdWire, LeaseGoneError

_PORT = 2379
_DIGITS = 20
_AT_ONCE = 100
"""Keys deleted by one transaction; etcd takes 128."""


class EtcdStore(ServerStore):
    """One job in one etcd cluster (3.3 or newer)."""

    def __init__(self, url: str, job: str, *, timeout: float = TIMEOUT, **given: str) -> None:
        """``timeout``: seconds for one operation, connecting included. ``given``: see ``parse_server_url``.

        Raises ConfigError if ``url`` cannot be parsed or a file that it names is missing.
        """
        parsed = parse_server_url(url, ("etcd", "etcds"), _PORT, **given)
        if parsed.database:
            raise ConfigError(f"the store {parsed}: expected nothing after the servers")
        if bool(parsed.username) != bool(parsed.password):
            raise ConfigError(f"the store {parsed}: etcd needs both, etcd://user:password@host:port")
        self._wire = EtcdWire(parsed, timeout)
        super().__init__(parsed, job, self._wire)
        self._values, self._compactions = (f"/ftlib/{self._job}/{part}/" for part in ("values", "floors"))
        self._lease = _Lease(self)

    async def open(self) -> None:
        """See ``Store``."""
        probe = _coded(f"{self._values}.probe")  # no key of a caller begins with a dot
        for path, body in (("kv/put", {"key": probe}), ("kv/deleterange", {"key": probe})):
            await self.ask(path, body)

    async def ask(self, path: str, body: Mapping[str, Any], *, write: bool = False) -> dict[str, Any]:
        """One operation, counted."""
        self.operations += 1
        return await self._wire.ask(path, body, write=write)

    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        """See ``Store``."""
        name = _coded(self._values + check_key(key))
        put: list[dict[str, Any]] = [{"request_put": {"key": name, "value": _coded(check_value(key, value))}}]
        if number is not None:
            if number < 0:
                return Created.BELOW  # of every compacted revision
            level = _coded(self._compactions + series)
            reached = _txn([_value_below(level, number + 1)], put)
            put = [_nested(_txn([_absent(level)], put, [_nested(reached)]))]
        answer = await self.ask("kv/txn", _txn([_absent(name)], put), write=True)
        if not answer.get("succeeded"):
            return Created.EXISTS
        return Created.DONE if _has_put(answer) else Created.BELOW

    async def read(self, key: str) -> Value | None:
        """See ``Store``."""
        value = _value(await self.ask("kv/range", {"key": _coded(self._values + check_key(key))}))
        return None if value is None else found_value(key, value)

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """See ``Store``."""
        body = {"key": _coded(self._values + check_key(key)), "value": _coded(check_value(key, value))}
        if expires is None:
            await self.ask("kv/put", body, write=True)
            return
        try:
            await self.ask("kv/put", {**body, "lease": await self._lease.lasting(expires)}, write=True)
        except LeaseGoneError:
            self._lease.forget()
            await self.ask("kv/put", {**body, "lease": await self._lease.lasting(expires)}, write=True)

    async def delete(self, *keys: str) -> None:
        """See ``Store``. One transaction for every hundred."""
        names = [_coded(self._values + check_key(key)) for key in dict.fromkeys(keys)]
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            self.operations += len(part)
            body = _txn([], [{"request_delete_range": {"key": name}} for name in part])
            await self._wire.ask("kv/txn", body, write=True)

    async def list(self, prefix: str) -> Mapping[str, Value]:
        """See ``Store``. As of one moment."""
        answer = await self.ask("kv/range", {**_span(self._values + check_prefix(prefix)), "sort_target": "KEY"})
        found = answer.get("kvs", [])
        self.operations += max(0, len(found) - 1)
        cut = len(self._values)
        names = [b64decode(entry["key"]).decode("utf-8", "replace")[cut:] for entry in found]
        return {
            name: found_value(name, b64decode(entry.get("value", "")))
            for name, entry in zip(names, found, strict=True)
            if is_key(name)
        }

    async def compacted(self, series: str) -> int:
        """See ``Store``."""
        answer = await self.ask("kv/range", {"key": _coded(self._compactions + series)})
        return self._parse_compacted(series, _value(answer) or b"0")

    async def compact(self, series: str, number: int) -> int:
        """See ``Store``."""
        if number <= 0:
            return await self.compacted(series)
        level = _coded(self._compactions + series)
        put = [{"request_put": {"key": level, "value": _coded(f"{number:0{_DIGITS}}")}}]
        look = [{"request_range": {"key": level}}]
        higher = _txn([_value_below(level, number)], put, look)
        answer = await self.ask("kv/txn", _txn([_absent(level)], put, [_nested(higher)]), write=True)
        if _has_put(answer):
            return number
        found = answer["responses"][0]["response_txn"]["responses"][0]["response_range"]
        return self._parse_compacted(series, _value(found) or b"0")

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store``. Reports neither heartbeats (values that expire, written again) nor compactions."""
        body = {"create_request": _span(self._values + check_prefix(prefix))}

        async def listen(tell: Callable[[], None]) -> None:
            def received(result: dict[str, Any]) -> None:
                if result.get("canceled"):
                    raise ValueError(f"the watch was cancelled: {result.get('cancel_reason', 'no reason given')}")
                if result.get("created") or any(not _is_heartbeat(event) for event in result.get("events", [])):
                    tell()

            await self._wire.listen(body, received)

        return self._watches.follow(listen)


class _Lease:
    """The lease of one store's values that may expire. It only serves to clean up."""

    def __init__(self, store: EtcdStore) -> None:
        """No lease is granted yet."""
        self._store = store
        self._lock = asyncio.Lock()
        self._id = ""
        self._life = 0
        self._renewed = 0.0

    def forget(self) -> None:
        """The lease has expired."""
        self._id = ""

    async def lasting(self, expires: float) -> str:
        """The lease's id; from now on it lasts at least ``expires`` seconds."""
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if self._id and 2 * expires <= self._life:
                if now - self._renewed < self._life / 3:
                    return self._id
                answer = await self._store.ask("lease/keepalive", {"ID": self._id})
                if int(answer.get("TTL", 0)) > 0:
                    self._renewed = now
                    return self._id
            self._life = math.ceil(2 * expires)
            answer = await self._store.ask("lease/grant", {"TTL": str(self._life)})
            self._id, self._renewed = str(answer["ID"]), now
            return self._id


def _coded(text: str | bytes) -> str:
    return b64encode(text.encode() if isinstance(text, str) else text).decode()


def _span(prefix: str) -> dict[str, str]:
    """All keys that begin with ``prefix``: "0" comes right after "/"."""
    return {"key": _coded(prefix), "range_end": _coded(f"{prefix[:-1]}0")}


def _txn(
    compare: list[dict[str, Any]], then: list[dict[str, Any]], otherwise: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {"compare": compare, "success": then, "failure": otherwise or []}


def _nested(txn: dict[str, Any]) -> dict[str, Any]:
    return {"request_txn": txn}


def _absent(name: str) -> dict[str, Any]:
    return {"key": name, "target": "CREATE", "create_revision": "0", "result": "EQUAL"}


def _value_below(name: str, number: int) -> dict[str, Any]:
    """Never true of an absent key."""
    return {"key": name, "target": "VALUE", "value": _coded(f"{number:0{_DIGITS}}"), "result": "LESS"}


def _has_put(answer: dict[str, Any]) -> bool:
    """Whether the branch that was taken, at any depth, put a value."""
    return any(
        "response_put" in response or _has_put(response.get("response_txn", {})) for response in answer.get("responses", [])
    )


def _value(answer: dict[str, Any]) -> bytes | None:
    found = answer.get("kvs", [])
    return b64decode(found[0].get("value", "")) if found else None


def _is_heartbeat(event: dict[str, Any]) -> bool:
    entry = event.get("kv", {})
    return event.get("type", "PUT") == "PUT" and int(entry.get("lease", 0)) != 0 and int(entry.get("version", 1)) > 1
