"""One process's way to the simulated store: the ``Store`` that its executor is given.

A store is of one of two characters. In a *transactional* one (Redis, etcd) an operation is a single moment at the store. In one
made of *files* it is several, between which time passes and others act: a creator reads the compacted revision, links its
value, reads the compacted revision again, and takes the value back; a listing has names first and values later. The steps of
such an operation are taken by the process: one that sleeps in between takes the next when it wakes up, one that died takes
none.

A method awaits one ``StoreCall`` (or ``Notice``), and nothing else. ``store_requests`` plays it in virtual time; it may fail.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from ...storage.store import Created, Store, Value
from .in_memory_store import InMemoryStore

T = TypeVar("T")

Steps = Generator[None, None, T]
"""What an operation does at the store, moment by moment; in between the process has to take the next step."""


class Character(Enum):
    """How an operation is made."""

    ATOMIC = "atomic"
    FILES = "files"


@dataclass(frozen=True, slots=True, eq=False)
class StoreCall:
    """An operation under way. ``text``: for errors and the trace; ``writes``: whether a lost answer leaves a doubt."""

    steps: Steps[Any]
    text: str
    writes: bool

    def __await__(self) -> Generator[StoreCall, Any, Any]:
        return (yield self)


@dataclass(frozen=True, slots=True, eq=False)
class Notice:
    """Waiting until something under ``prefix`` may have changed."""

    prefix: str

    def __await__(self) -> Generator[Notice, None, None]:
        yield self


def _moment(act: Callable[[], T]) -> Steps[T]:
    """An operation of one step."""
    yield from ()
    return act()


def garbled(found: Any, spoils: Callable[[], bool]) -> Any:
    """What was read, where some values (``spoils`` is asked for each) cannot be opened: their secret is another one, say."""
    if isinstance(found, bytes):
        return b"?" + found if spoils() else found  # another one still looks like another one
    if isinstance(found, Mapping):
        return {key: garbled(value, spoils) for key, value in found.items()}
    return found


class SimulatedStore(Store):
    """See ``Store``."""

    def __init__(self, contents: InMemoryStore, character: Character, *, notices: bool = True) -> None:
        """``notices``: whether it tells of changes."""
        self.url = "simulated://store"
        self.operations = 0
        self._contents = contents
        self._files = character is Character.FILES
        self._notices = notices

    async def open(self) -> None:
        """See ``Store.open``."""

    async def close(self) -> None:
        """See ``Store.close``."""

    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        """See ``Store.create``."""
        created: Created = await self._do(self._create(key, value, number, series), f"create {key}", writes=True)
        return created

    def _create(self, key: str, value: bytes, number: int | None, series: str) -> Steps[Created]:
        contents = self._contents
        if number is not None:
            if number < contents.compacted(series):
                return Created.BELOW
            if self._files:
                yield
        if not contents.create(key, value, number or 0, "" if number is None else series):
            return Created.EXISTS
        if self._files and number is not None:
            yield
            if number < contents.compacted(series):
                yield
                contents.take_back(key, value)
                return Created.BELOW
        return Created.DONE

    async def read(self, key: str) -> Value | None:
        """See ``Store.read``."""
        value: Value | None = await self._do(_moment(lambda: self._contents.read(key)), f"read {key}")
        return value

    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """See ``Store.write``. Files do not expire."""
        until = None if self._files else expires
        await self._do(_moment(lambda: self._contents.write(key, value, until)), f"write {key}", writes=True)

    async def delete(self, *keys: str) -> None:
        """See ``Store.delete``."""
        await self._do(self._delete(keys), f"delete {' '.join(keys)}", writes=True)

    def _delete(self, keys: tuple[str, ...]) -> Steps[None]:
        for number, key in enumerate(keys):
            if self._files and number:
                yield
            self._contents.delete((key,))

    async def list(self, prefix: str) -> Mapping[str, Value]:
        """See ``Store.list``."""
        found: Mapping[str, Value] = await self._do(self._list(prefix), f"list {prefix}")
        self.operations += max(0, len(found) - 1)
        return found

    def _list(self, prefix: str) -> Steps[Mapping[str, bytes]]:
        names = self._contents.names(prefix)
        if not self._files or not names:
            return self._contents.values(names)
        yield  # what is read now may be newer than what is read next, and have names that were not seen
        half = len(names) // 2
        found = self._contents.values(names[half:])
        yield
        return {**self._contents.values(names[:half]), **found}

    async def compacted(self, series: str) -> int:
        """See ``Store.compacted``."""
        number: int = await self._do(_moment(lambda: self._contents.compacted(series)), f"compacted {series}")
        return number

    async def compact(self, series: str, number: int) -> int:
        """See ``Store.compact``."""
        steps = _moment(lambda: self._contents.compact(series, number))
        compacted: int = await self._do(steps, f"compact {series} to {number}", writes=True)
        return compacted

    async def watch(self, prefix: str) -> AsyncIterator[None]:
        """See ``Store.watch``."""
        while self._notices:
            await Notice(prefix)
            yield None

    async def _do(self, steps: Steps[Any], text: str, *, writes: bool = False) -> Any:
        self.operations += 1
        return await StoreCall(steps, text, writes)
