"""What stores that are servers have in common: their URL, the form of a compacted revision, and watching for changes.

A watch is one task that listens, reconnects, and wakes its reader. Changes that come together wake the reader once. Every
reconnect wakes the reader too, because changes in between were missed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from ..errors import StoreError
from ..logs import CarefulLogger
from .server_url import ServerUrl, escape_job
from .store import Store, parse_compacted

_LOG = CarefulLogger()

_FIRST_PAUSE = 0.05
_LAST_PAUSE = 1.0
"""Seconds between two tries to reconnect: doubled from the first to the last, each scattered between half and whole."""

Listen = Callable[[Callable[[], None]], Awaitable[None]]
"""Connects, calls its argument once it listens (earlier changes may be missed) and at every change, until it raises.

It returns where it has to be called again though nothing is wrong.
"""


ODD_ANSWER = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What reading an answer raises that is of another form than the server's: something else may answer at its address."""


class Watches:
    """All watches of one store."""

    def __init__(self, store: str, rng: random.Random | None = None) -> None:
        """``store``: its URL, for the log."""
        self._store = store
        self._rng = rng or random.Random()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def follow(self, listen: Listen) -> AsyncIterator[None]:
        """Yields after each notification of ``listen``; ends when the store is closed."""
        if self._closed:
            return
        news = asyncio.Event()
        task = asyncio.create_task(self._listen(listen, news))
        task.add_done_callback(lambda _: news.set())
        self._tasks.append(task)
        try:
            while await news.wait() and not task.done():
                news.clear()
                yield
            if not task.cancelled():
                task.result()
        finally:
            self._tasks.remove(task)
            task.cancel()

    async def _listen(self, listen: Listen, news: asyncio.Event) -> None:
        pause = _FIRST_PAUSE
        told = False

        def tell() -> None:
            nonlocal pause, told
            pause, told = _FIRST_PAUSE, False
            news.set()

        while True:
            try:
                await listen(tell)
            except StoreError as error:
                if not told:
                    _LOG.warning("the store %s is not watched for now, changes are noticed later: %s", self._store, error)
                told = True
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.0))
            pause = min(2 * pause, _LAST_PAUSE)

    async def close(self) -> None:
        """End all of them. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Wire(Protocol):
    """Connections to a server."""

    async def close(self) -> None:
        """End all of them."""


class ServerStore(Store):
    """One job in one server.

    A ``create`` whose answer was lost is never repeated in here; the caller's next try then returns ``EXISTS`` although the
    value is its own.
    """

    def __init__(self, url: ServerUrl, job: str, wire: Wire) -> None:
        self.url = str(url)
        self.operations = 0
        self._job = escape_job(job)
        self._connections = wire
        self._watches = Watches(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    async def close(self) -> None:
        """See ``Store``. Values that may expire are not removed."""
        await self._watches.close()
        await self._connections.close()

    def _parse_compacted(self, series: str, found: bytes) -> int:
        """The compacted revision of ``series``, which the server keeps as ``found``."""
        return parse_compacted(self.url, series, found.decode("utf-8", "replace"))
