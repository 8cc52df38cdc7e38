"""Stores as a member uses them: what is away is asked again, what is ambiguous is resolved by reading, changes are heard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from consensus.errors import AmbiguousWriteError, StoreAwayError
from consensus.storage.store import Created, Store
from tests.harness.basics import TIMEOUT

SOON = 3.0
"""Seconds in which a busy machine has begun what it was asked for."""


@contextmanager
def impatient(store: Any) -> Iterator[None]:
    """What hangs anyway is given up after ``SOON``. What is to be well has its full time."""
    owner = getattr(store, "_wire", store)  # of a server's, or a directory
    patience, owner._timeout = owner._timeout, SOON
    try:
        yield
    finally:
        owner._timeout = patience


async def once_read(store: Store, key: str) -> bytes | None:
    async with asyncio.timeout(TIMEOUT):
        while True:
            with suppress(StoreAwayError):
                return await store.read(key)


async def created(store: Store, key: str, value: bytes) -> bool:
    """As a member does it: away is tried again, ambiguous is resolved by reading."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                if await store.create(key, value) is Created.DONE:
                    return True
                return await store.read(key) == value
            except (StoreAwayError, AmbiguousWriteError):
                await asyncio.sleep(0.05)


async def until_away(store: Store) -> None:
    """Until the member that is left knows that it is alone, it lets everybody wait."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await store.read("views/1")
            except StoreAwayError as error:
                if "quorum" in str(error):
                    raise
            await asyncio.sleep(0.05)


async def first_told(store: Store, prefix: str) -> bool:
    async for _ in store.watch(prefix):
        return True
    return False


class Heard:
    """Follows ``store.watch(prefix)`` until that ends."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.count = 0
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._follow(store, prefix))

    async def _follow(self, store: Store, prefix: str) -> None:
        async for _ in store.watch(prefix):
            self.count += 1
            self._news.set()

    async def once(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._news.wait()
        await asyncio.sleep(0.05)  # what comes together
        self._news.clear()

    async def nothing(self) -> None:
        await asyncio.sleep(0.15)
        assert not self._news.is_set()

    async def ended(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            await self._task
