"""A store in memory on which a test can place what others do between two operations, to the instant.

    store.at("read", 2, lambda: store.wipe())       # before the second read
    store.at("create", 1, fail, after=True)         # once the first create is done: its answer is lost

Only for such interleavings: everything else is tested with stores that are real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from types import coroutine
from typing import Any

from consensus.storage.store import Created, Store, Value


class _Turn:
    """What its methods wait for: nobody else's awaitable looks like it."""


@coroutine
def _turn() -> Any:
    yield _Turn


class ScriptedStore(Store):
    def __init__(self) -> None:
        self.url = "scripted://"
        self.operations = 0
        self.values: dict[str, Value] = {}
        self.revisions: dict[str, int] = {}
        """The compacted revision of each series."""
        self.log: list[str] = []
        self._seen: Counter[str] = Counter()
        self._plans: dict[tuple[str, int, bool], Callable[[], object]] = {}

    def at(self, operation: str, count: int, act: Callable[[], object], *, after: bool = False) -> None:
        """Have ``act`` called before (or after) the ``count``-th ``operation`` from now on. What it raises, that raises."""
        self._plans[operation, self._seen[operation] + count, after] = act

    def wipe(self) -> None:
        self.values.clear()
        self.revisions.clear()

    async def _step(self, operation: str, act: Callable[[], Any], *, what: str = "") -> Any:
        self.operations += 1
        self._seen[operation] += 1
        self.log.append(f"{operation} {what}".strip())
        count = self._seen[operation]
        await _turn()
        self._plans.pop((operation, count, False), lambda: None)()
        result = act()
        self._plans.pop((operation, count, True), lambda: None)()
        return result

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        def create() -> Created:
            if number is not None and number < self.revisions.get(series, 0):
                return Created.BELOW
            return Created.EXISTS if self.values.setdefault(key, value) is not value else Created.DONE

        created: Created = await self._step("create", create, what=key)
        return created

    async def read(self, key: str) -> Value | None:
        value: Value | None = await self._step("read", lambda: self.values.get(key), what=key)
        return value

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        await self._step("write", lambda: self.values.update({key: value}), what=key)

    async def delete(self, *keys: str) -> None:
        await self._step("delete", lambda: [self.values.pop(key, None) for key in keys], what=" ".join(keys))

    async def list(self, prefix: str) -> Mapping[str, Value]:
        found: Mapping[str, Value] = await self._step(
            "list", lambda: {key: value for key, value in sorted(self.values.items()) if key.startswith(prefix)}, what=prefix
        )
        return found

    async def compacted(self, series: str) -> int:
        number: int = await self._step("compacted", lambda: self.revisions.get(series, 0), what=series)
        return number

    async def compact(self, series: str, number: int) -> int:
        def compact() -> int:
            self.revisions[series] = max(number, self.revisions.get(series, 0))
            return self.revisions[series]

        compacted: int = await self._step("compact", compact, what=f"{series} {number}")
        return compacted

    async def watch(self, prefix: str) -> AsyncIterator[None]:
        events: tuple[None, ...] = ()
        for event in events:
            yield event


def run(coroutine_: Coroutine[Any, Any, Any]) -> Any:
    """Its result. No event loop: an awaitable that is not the store's fails."""
    while True:
        try:
            waited = coroutine_.send(None)
        except StopIteration as end:
            return end.value
        assert waited is _Turn, f"awaits something else than the store: {waited!r}"
