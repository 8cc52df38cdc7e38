"""As a member does it: what is away is asked again, what is ambiguous is resolved by reading."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from consensus.errors import AmbiguousWriteError, StoreAwayError
from consensus.storage.store import Created, Store

__all__ = ["created", "first_told", "once_read", "until_away"]


async def once_read(store: Store, key: str) -> bytes | None:
    async with asyncio.timeout(20):
        while True:
            with suppress(StoreAwayError):
                return await store.read(key)


async def created(store: Store, key: str, value: bytes) -> bool:
    """As a member does it: away is tried again, ambiguous is resolved by reading."""
    async with asyncio.timeout(30):
        while True:
            try:
                if await store.create(key, value) is Created.DONE:
                    return True
                return await store.read(key) == value
            except (StoreAwayError, AmbiguousWriteError):
                await asyncio.sleep(0.05)


async def until_away(store: Store) -> None:
    """Until the member that is left knows that it is alone, it lets everybody wait."""
    async with asyncio.timeout(30):
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
