"""The interface of a shared store: small values under names, created exclusively, listed, and compacted.

Every agreement through a store rests on two of its operations. ``create`` makes a value exactly once, even if several members
try. ``compact`` raises the *compacted revision* of a series of numbered values. That number never falls, and no value below it
is created: so a member that slept while old values were cleaned up cannot create one of them again. (What is stored, and what
errors say, calls that number a floor.)

Each operation is bounded by the store's ``timeout``. There are three failures: the store was not reached and nothing was done
(``StoreAwayError``); the answer to a write was lost, and the write may have been done or may still be (``AmbiguousWriteError``:
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
"""The most bytes of a value."""
TIMEOUT = 2.0
"""Seconds that one operation may take, unless the caller says otherwise."""

MOST_PARTS = 4
"""The most parts of a key: so who lists keys knows how deep to look."""

_PART = r"[a-z0-9_-][a-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART}){{0,{MOST_PARTS - 1}}}")
_PREFIX = re.compile(rf"(?:{_PART}/){{1,{MOST_PARTS - 1}}}")


PASSING = "leases/"
"""The prefix of all keys whose values may expire. Their members write them again and again, so an old one is left over."""


class Created(Enum):
    """The result of ``Store.create``."""

    DONE = "created"
    EXISTS = "exists"
    """The key already has a value; perhaps an earlier try of our own."""

    BELOW = "below the compacted revision"
    """The value of that name was cleaned up: this member has missed something. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something in the place of a value that is none: torn, too large, of another type, or without permission to open it.

    The name is taken all the same: nothing can be created there. ``why`` says what is wrong, and the remedy.
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
    """The number of operations so far; a listing of n values counts as n (of none, as one)."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, and check that the store keeps what it promises. Raises ``StoreAwayError`` or ``StoreRefusedError``."""

    @abstractmethod
    async def close(self) -> None:
        """End connections and tasks. Never raises."""

    @abstractmethod
    async def create(self, key: str, value: bytes, *, number: int | None = None, series: str = "") -> Created:
        """Make ``key`` unless it exists: atomically, durably, for one caller only.

        With ``number``: only if the number is not below the compacted revision of ``series``. (A store does this in one
        transaction, or reads the compacted revision again after creating and takes the value back; so a reader of such a
        value must read the compacted revision after it.) May also raise ``AmbiguousWriteError``.
        """

    @abstractmethod
    async def read(self, key: str) -> Value | None:
        """The value; None if there is none."""

    @abstractmethod
    async def write(self, key: str, value: bytes, *, expires: float | None = None) -> None:
        """Make or replace ``key``. ``expires``: seconds after which a store that can may forget it (clean-up, not liveness)."""

    @abstractmethod
    async def delete(self, *keys: str) -> None:
        """Remove ``keys``; a missing key is no error."""

    @abstractmethod
    async def list(self, prefix: str) -> Mapping[str, Value]:
        """All keys that begin with ``prefix`` (ends in ``/``), with their values, sorted by key. A value that is ``Unreadable``
        hides no other; names that are no keys are left out.
        """

    @abstractmethod
    async def compacted(self, series: str) -> int:
        """The compacted revision of ``series``, 0 if it was never compacted."""

    @abstractmethod
    async def compact(self, series: str, number: int) -> int:
        """Raise the compacted revision of ``series`` to ``number`` unless it is higher. Returns what it is then. It never
        falls, even if others raise it at the same time. No value is removed: the caller does that afterwards.
        """

    @abstractmethod
    def watch(self, prefix: str) -> AsyncIterator[None]:
        """Yields soon after something under ``prefix`` may have changed: a hint to look, not a promise (events may be missed or
        merged). Ends only when the store is closed; reconnects by itself. A store that cannot notice changes never yields.
        """


def redacted(url: str) -> str:
    """``url`` for logs and errors: without user, password and query. Of a malformed URL even less is shown."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url or "?" in url else url
    before, at, after = rest.rpartition("@")
    if "?" in before:  # the "?" may be part of a password, or the "@" of a query
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if at else ''}{after.partition('?')[0]}"


# What a key and a value may be: the same for every store, so that what works with one works with all.


def check_key(key: str) -> str:
    """Returns ``key``. Raises ConfigError unless it is 1 to ``MOST_PARTS`` parts, with ``/`` between.

    A part is 1 to 200 of ``[a-z0-9._-]``, without a leading dot.
    """
    if not _KEY.fullmatch(key):
        parts = f"1 to {MOST_PARTS} parts of [a-z0-9._-], none empty or with a leading dot, / between"
        raise ConfigError(f"{key!r} is no key of a store: {parts}")
    return key


def check_prefix(prefix: str) -> str:
    """Returns ``prefix``. Raises ConfigError unless it is parts of a key, each followed by ``/``."""
    if not _PREFIX.fullmatch(prefix):
        raise ConfigError(f"{prefix!r} is no prefix of a store's keys: parts of [a-z0-9._-], each followed by /")
    return prefix


def check_value(key: str, value: bytes) -> bytes:
    """Returns ``value``. Raises ConfigError if it is too large."""
    if len(value) > MAX_VALUE:
        raise ConfigError(f"the value of {key!r} has {len(value)} bytes, {MAX_VALUE} are the most")
    return value


def is_key(name: str) -> bool:
    """Whether a name that was found in a store can be one of ours."""
    return _KEY.fullmatch(name) is not None


def found_value(key: str, value: bytes) -> Value:
    """The value that a server has at ``key``; Unreadable if too large, since no member writes more than ``MAX_VALUE``."""
    return value if len(value) <= MAX_VALUE else too_large(key)


def too_large(key: str) -> Unreadable:
    """The Unreadable for a value that is too large, which need not be fetched."""
    return Unreadable(f"it has more than {MAX_VALUE} bytes: remove {key}, no member wrote it")


def parse_compacted(store: str, series: str, text: str) -> int:
    """The compacted revision that a server keeps as ``text``. StoreRefusedError if that is no number: no member wrote it."""
    if not (text.isascii() and text.isdecimal()):
        raise StoreRefusedError(
            f"the store {store}: the floor of {series} is {text[:40]!r} and no number: remove this job's keys"
        )
    return int(text)
