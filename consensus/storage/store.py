"""What a shared store has to offer: small values under names, created exclusively, listed, and a floor that only rises.

Everything that is agreed through a store rests on two of its operations. ``create`` makes a value exactly once, whoever
else tries; ``raise_floor`` lifts a number that never falls. A value that belongs to a floor is created only at or above it:
so a member that slept while old values were cleaned away cannot make one of them again.

Time spent here is bounded by the store's ``timeout``. A failure is one of three: the store was not reached and nothing was
done (``StoreAwayError``); the answer to a write got lost, and it may have been done or may still be (``AmbiguousWriteError``:
read to learn which); or it will never work (``StoreRefusedError``: wrong password, no hard links; the text names the remedy).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ..errors import ConfigError, StoreRefusedError

MAX_VALUE = 1 << 20
"""Bytes of a value at most."""
TIMEOUT = 2.0
"""Seconds that one operation may take, unless the caller says otherwise."""

_PART = r"[a-z0-9_-][a-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)+")


class Created(Enum):
    """What came of ``Store.create``."""

    DONE = "created"
    EXISTS = "exists"
    """Somebody's value stands there; perhaps an earlier try of our own."""

    BELOW = "below the floor"
    """What had that name was cleaned away: this member has missed something. Nothing was left behind."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What stands where a value belongs, and is none: torn, too large, of another type, or not ours to open.

    Its name is taken all the same: nothing can be created there. ``why`` says what it is, and the remedy.
    """

    why: str


Value = bytes | Unreadable


class Store(ABC):
    """One job's part of a shared store: two jobs in one store do not see each other.

    Keys are relative to the job, of ``[a-z0-9._-]`` with ``/`` between parts; values are bytes. Owned by one event loop.
    """

    url: str
    """For logs and errors: never with a password."""

    operations: int
    """How many operations were asked of the store so far; a listing of n counts as n (of none, as one)."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and make sure that the store keeps what it promises. Raises ``StoreAwayError`` or ``StoreRefusedError``."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of connections and tasks. Never raises."""

    @abstractmethod
    async def create(self, key: str, value: bytes, *, number: int | None = None, floor: str = "") -> Created:
        """Make ``key`` unless it exists: atomically, durably, for one caller only.

        With ``number`` only if that is not below the floor of the name ``floor`` (one transaction, or the floor is read again
        after creating and the value taken back: whoever reads such a value reads the floor after it).
        Raises ``AmbiguousWriteError`` too.
        """

    @abstractmethod
    async def read(self, key: str) -> Value | None:
        """The value; None where there is nothing."""

    @abstractmethod
    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """Make or replace ``key``. ``expires``: seconds after which a store that can may forget it (clean-up, not liveness)."""

    @abstractmethod
    async def delete(self, *keys: str) -> None:
        """Remove; what does not exist is no error."""

    @abstractmethod
    async def list(self, prefix: str) -> Mapping[str, Value]:
        """All keys that begin with ``prefix`` (ends in ``/``), with their values, sorted by key. One that is ``Unreadable``
        hides no other; names that are no keys are left out.
        """

    @abstractmethod
    async def floor(self, name: str) -> int:
        """The number of that name, 0 where it was never raised."""

    @abstractmethod
    async def raise_floor(self, name: str, number: int) -> int:
        """Lift it to ``number`` unless it is higher; what it is then. It never falls, whoever else does this at once."""

    @abstractmethod
    def watch(self, prefix: str) -> AsyncIterator[None]:
        """Yields after something under ``prefix`` may have changed: a reason to look, soon, not a promise (events may be missed
        or come together). Ends only when the store is closed; reconnects by itself. A store that cannot notice never yields.
        """


def redacted(url: str) -> str:
    """``url`` for logs and errors: without user, password and query. Of a malformed one rather less is shown."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url or "?" in url else url
    before, at, after = rest.rpartition("@")
    if "?" in before:  # cut in the middle of one or the other: who could tell which
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if at else ''}{after.partition('?')[0]}"


# What a key and a value may be: the same for every store, so that what works with one works with all.


def check_key(key: str) -> str:
    """``key``, if it is one: parts of 1 to 200 of ``[a-z0-9._-]``, not with a leading dot, ``/`` between. ConfigError."""
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{key!r} is no key of a store: parts of [a-z0-9._-], none empty or with a leading dot, / between")
    return key


def check_prefix(prefix: str) -> str:
    """``prefix``, if it is one: parts of a key, each followed by ``/``. ConfigError."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} is no prefix of a store's keys: parts of [a-z0-9._-], each followed by /")
    return prefix


def check_value(key: str, value: bytes) -> bytes:
    """``value``, if it is not too large. ConfigError."""
    if len(value) > MAX_VALUE:
        raise ConfigError(f"the value of {key!r} has {len(value)} bytes, {MAX_VALUE} are the most")
    return value


def is_key(name: str) -> bool:
    """Whether a name that was found in a store can be one of ours."""
    return _KEY.fullmatch(name) is not None


def found_value(key: str, value: bytes) -> Value:
    """What a server has at ``key``: nobody of ours writes more than ``MAX_VALUE``."""
    return value if len(value) <= MAX_VALUE else too_large(key)


def too_large(key: str) -> Unreadable:
    """Of something that need not be fetched to know that."""
    return Unreadable(f"it has more than {MAX_VALUE} bytes: remove {key}, no member wrote it")


def parse_floor(store: str, name: str, text: str) -> int:
    """The number of a floor as a server keeps it. StoreRefusedError where somebody else has written there."""
    if not (text.isascii() and text.isdecimal()):
        raise StoreRefusedError(
            f"the store {store}: the floor of {name} is {text[:40]!r} and no number: remove this job's keys"
        )
    return int(text)
