"""A store with a gauge: how often what was asked of it, and since when it does not answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, TypeVar

from ...errors import StoreError
from ...storage.store import Created, Store, Value

__all__ = ["StoreGauge"]

T = TypeVar("T")


class StoreGauge(Store):
    """Passes everything on to ``store``, and counts."""

    def __init__(self, store: Store) -> None:
        """Nothing was asked yet."""
        self._store = store
        self.url = store.url
        self.operations = store.operations
        self._kinds: Counter[str] = Counter()
        self._begun = 0
        self._failures = 0
        self._newest_failure = 0
        """How many had begun by then: what began before it does not show that the store is back."""
        self._away_since: float | None = None

    def status(self) -> dict[str, Any]:
        """Plain values. ``away_since``: wall-clock seconds; None while it answers. ``requests`` by kind; one may be several
        ``operations`` (see ``Store.operations``).
        """
        return {
            "url": self.url,
            "away_since": None if self._away_since is None else round(self._away_since, 3),
            "operations": self.operations,
            "requests": dict(sorted(self._kinds.items())),
            "failures": self._failures,
        }

    async def open(self) -> None:
        """See ``Store.open``."""
        await self._measured("open", self._store.open())

    async def close(self) -> None:
        """See ``Store.close``."""
        await self._store.close()

    async def create(self, key: str, value: bytes, *, number: int | None = None, floor: str = "") -> Created:
        """See ``Store.create``."""
        return await self._measured("create", self._store.create(key, value, number=number, floor=floor))

    async def read(self, key: str) -> Value | None:
        """See ``Store.read``."""
        return await self._measured("read", self._store.read(key))

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """See ``Store.write``."""
        await self._measured("write", self._store.write(key, value, expires=expires))

    async def delete(self, *keys: str) -> None:
        """See ``Store.delete``."""
        await self._measured("delete", self._store.delete(*keys))

    async def list(self, prefix: str) -> Mapping[str, Value]:
        """See ``Store.list``."""
        return await self._measured("list", self._store.list(prefix))

    async def floor(self, name: str) -> int:
        """See ``Store.floor``."""
        return await self._measured("floor", self._store.floor(name))

    async def raise_floor(self, name: str, number: int) -> int:
        """See ``Store.raise_floor``."""
        return await self._measured("raise_floor", self._store.raise_floor(name, number))

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store.watch``."""
        return self._store.watch(prefix)

    async def _measured(self, kind: str, operation: Awaitable[T]) -> T:
        self._kinds[kind] += 1
        self._begun += 1
        number = self._begun
        try:
            result = await operation
        except StoreError:
            self._failures += 1
            self._newest_failure = self._begun
            if self._away_since is None:
                self._away_since = time.time()
            raise
        finally:
            self.operations = self._store.operations
        if number > self._newest_failure:
            self._away_since = None
        return result
