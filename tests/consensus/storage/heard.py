"""A watch, followed: what a test can ask of it."""

from __future__ import annotations

import asyncio

from consensus.storage.store import Store

__all__ = ["Heard"]


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
        async with asyncio.timeout(20):
            await self._news.wait()
        await asyncio.sleep(0.05)  # what comes together
        self._news.clear()

    async def nothing(self) -> None:
        await asyncio.sleep(0.15)
        assert not self._news.is_set()

    async def ended(self) -> None:
        async with asyncio.timeout(20):
            await self._task
