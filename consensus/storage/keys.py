"""What a key and a value may be: the same for every store, so that what works with one works with all."""

from __future__ import annotations

import re

from ..errors import ConfigError, StoreRefusedError
from .store import MAX_VALUE, Unreadable, Value

__all__ = ["check_key", "check_prefix", "check_value", "found_value", "is_key", "parse_floor", "too_large"]

_PART = r"[a-z0-9_-][a-z0-9._-]{0,199}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX = re.compile(rf"(?:{_PART}/)+")


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
