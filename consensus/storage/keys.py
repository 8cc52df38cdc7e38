"""What a key and a value may be: the same for every store, so that what works with one works with all."""

from __future__ import annotations

import re

from ..errors import ConfigError
from .store import MAX_VALUE

__all__ = ["check_key", "check_prefix", "check_value"]

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
