"""Measures a store: the number of requests of each kind, and since when it does not answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from ...errors import StoreError
from ...storage.store import Store

P = ParamSpec("P")
T = TypeVar("T")


def _measured(
    method: Callable[Concatenate[Store, P], Coroutine[Any, Any, T]], kind: str = ""
) -> Callable[Concatenate[StoreGauge, P], Coroutine[Any, Any, T]]:
    """The method of a gauge: it calls the same method of its store, counted as ``kind`` ("": under its name)."""
    name = method.__name__

    async def measured(self: StoreGauge, /, *args: P.args, **options: P.kwargs) -> T:
        return await self.measure(kind or name, getattr(self.store, name)(*args, **options))

    return measured


class StoreGauge(Store):
    """Passes everything on to ``store``, and counts."""

    def __init__(self, store: Store) -> None:
        """No request yet."""
        self.store = store
        self.url = store.url
        self.operations = store.operations
        self._kinds: Counter[str] = Counter()
        self._begun = 0
        self._failures = 0
        self._newest_failure = 0
        """The number of requests begun at the newest failure: success of an earlier one does not show that the store is back.
        """
        self._away_since: float | None = None

    def status(self) -> dict[str, Any]:
        """Plain values. ``away_since``: wall-clock seconds; None while the store answers. ``requests``: by kind; one request
        may be several ``operations`` (see ``Store.operations``).
        """
        return {
            "url": self.url,
            "away_since": None if self._away_since is None else round(self._away_since, 3),
            "operations": self.operations,
            "requests": dict(sorted(self._kinds.items())),
            "failures": self._failures,
        }

    open = _measured(Store.open)
    create = _measured(Store.create)
    read = _measured(Store.read)
    write = _measured(Store.write)
    delete = _measured(Store.delete)
    list = _measured(Store.list)
    # The status says "floor": programs that read it know these two by the names that they had first.
    compacted = _measured(Store.compacted, "floor")
    compact = _measured(Store.compact, "raise_floor")

    async def close(self) -> None:
        """See ``Store.close``."""
        await self.store.close()

    def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store.watch``."""
        return self.store.watch(prefix)

    async def measure(self, kind: str, operation: Awaitable[T]) -> T:
        """The result of ``operation``, counted as one of its kind."""
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
            self.operations = self.store.operations
        if number > self._newest_failure:
            self._away_since = None
        return result
