"""A directory as a store: ``file:///directory``, on a local disk or mounted by all hosts (NFS).

``folder`` works with the files; this module bounds the time. Every operation runs on a thread and ends by its deadline: with
``StoreAwayError`` if it reads or never began, else with ``AmbiguousWriteError``. Changes of one key run one after the other: if
one still hangs after its deadline, the next is refused; otherwise an old heartbeat could replace a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from ...errors import AmbiguousWriteError, ConfigError, StoreAwayError
from ..store import TIMEOUT, Created, Store, Value, check_key, check_prefix, check_value, redacted
from ..thread_pool import NotBegunError, PoolCall, ThreadPool, UnfinishedError
from .compactions import MOST
from .folder import Folder

_THREADS = 4

T = TypeVar("T")


class FileStore(Store):
    """See ``Store``. Never notices changes: a network file system does not report them."""

    def __init__(self, url: str, job: str, *, timeout: float = TIMEOUT) -> None:
        """``url``: ``file:///directory``, percent-encoded; the directory must exist. ``timeout``: seconds an operation."""
        self.url = url
        self.operations = 0
        self._timeout = timeout
        self._folder = Folder(url, _directory(url), job)
        self._pool = ThreadPool("ftlib-file-store", _THREADS)
        self._changing: dict[str, asyncio.Future[None]] = {}
        self._closed = asyncio.Event()

    async def open(self) -> None:
        """See ``Store.open``."""
        await self._ask(lambda _: self._folder.open(), "open")

    async def close(self) -> None:
        """See ``Store.close``. Operations that still hang are abandoned."""
        self._closed.set()
        self._pool.close()

    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        """See ``Store.create``."""
        check_value(check_key(key), value)
        if number is not None:
            check_key(series)
        return await self._change(
            [key], lambda call: self._folder.create(key, value, number, series, lambda: not call.given_up), f"create {key}"
        )

    async def read(self, key: str) -> Value | None:
        """See ``Store.read``."""
        check_key(key)
        return await self._ask(lambda _: self._folder.read(key), f"read {key}")

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """See ``Store.write``. A value that may expire is not forced to disk."""
        check_value(check_key(key), value)
        durable = expires is None
        await self._change(
            [key], lambda call: self._folder.write(key, value, durable, lambda: not call.given_up), f"write {key}"
        )

    async def delete(self, *keys: str) -> None:
        """See ``Store.delete``. Counts as one operation a key."""
        for key in keys:
            check_key(key)
        if not keys:
            return

        def delete(call: PoolCall[None]) -> None:
            for key in keys:
                self._folder.delete(key, lambda: not call.given_up)

        self.operations += len(keys) - 1
        await self._change(keys, delete, f"delete {', '.join(keys)}")

    async def list(self, prefix: str) -> Mapping[str, Value]:
        """See ``Store.list``."""
        check_prefix(prefix)
        found = await self._ask(lambda _: self._folder.list(prefix), f"list {prefix}")
        self.operations += max(0, len(found) - 1)
        return found

    async def compacted(self, series: str) -> int:
        """See ``Store.compacted``."""
        check_key(series)
        return await self._ask(lambda _: self._folder.compacted(series), f"read the floor of {series}")

    async def compact(self, series: str, number: int) -> int:
        """See ``Store.compact``."""
        check_key(series)
        if not 0 <= number <= MOST:
            raise ConfigError(f"the floor of {series} cannot be {number}: give 0 to {MOST}")
        return await self._change([], lambda _: self._folder.compact(series, number), f"raise the floor of {series}")

    async def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store.watch``: never yields, ends when the store is closed. Members that share files notify each other."""
        check_prefix(prefix)
        await self._closed.wait()
        events: tuple[None, ...] = ()
        for event in events:
            yield event

    async def _ask(self, function: Callable[[PoolCall[T]], T], what: str) -> T:
        """Run an operation that changes nothing."""
        self.operations += 1
        try:
            return await self._pool.run(function, self._timeout)
        except NotBegunError as error:
            raise self._away(what, str(error)) from None
        except UnfinishedError:
            raise self._away(what, f"it did not answer within {self._timeout:g} s") from None

    async def _change(self, keys: Sequence[str], function: Callable[[PoolCall[T]], T], what: str) -> T:
        """Run an operation that changes ``keys``, after the earlier changes of these keys have ended."""
        self.operations += 1
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while earlier := [self._changing[key] for key in keys if key in self._changing]:
            await asyncio.wait(earlier, timeout=deadline - loop.time())
            if loop.time() >= deadline:
                raise self._away(what, "an earlier change of it still hangs")
        over = loop.create_future()
        self._changing.update(dict.fromkeys(keys, over))

        def ended() -> None:
            for key in dict.fromkeys(keys):
                del self._changing[key]
            over.set_result(None)

        try:
            return await self._pool.run(function, deadline - loop.time(), ended)
        except NotBegunError as error:
            raise self._away(what, str(error)) from None
        except UnfinishedError:
            raise AmbiguousWriteError(
                f"the store {self.url}: to {what} was begun and not finished within {self._timeout:g} s, it may still be done: "
                "look at the file server and the way to it"
            ) from None

    def _away(self, what: str, why: str) -> StoreAwayError:
        remedy = "" if self._closed.is_set() else ": look at the file server and the way to it"
        return StoreAwayError(f"the store {self.url} cannot {what}: {why}{remedy}")


def _directory(url: str) -> Path:
    scheme, _, rest = url.partition("://")
    path = unquote(rest, errors="surrogateescape")  # a name may be any bytes
    if scheme.lower() != "file" or not path.startswith("/") or "\0" in path:
        raise ConfigError(f"storage={redacted(url)!r} names no directory: give file:///shared/directory, with three slashes")
    if "?" in rest or "#" in rest:
        raise ConfigError(
            f"storage={redacted(url)!r}: file:// takes no settings; in the name of a directory write ? # as %3F %23"
        )
    return Path(path)
