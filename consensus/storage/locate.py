"""From the setting ``storage`` to a store: a URL's scheme says which. What a store needs is imported with its first use."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .store import Store

__all__ = ["TIMEOUT", "redacted", "store_at"]

TIMEOUT = 2.0
"""Seconds that one operation may take, unless the caller says otherwise."""

_EXAMPLES = "file:///shared/directory, redis://host:6379 or etcd://host:2379"


def store_at(url: str, job: str, *, timeout: float = TIMEOUT, **options: Any) -> Store:
    """The store at ``url``, for ``job``; not yet open.

    ``timeout``: seconds an operation may take. ``options``: what that kind of store takes besides. Raises ``ConfigError``.
    """
    if timeout <= 0:
        raise ConfigError(f"storage: a timeout of {timeout:g} s leaves no time: give some seconds")
    scheme, separator, _ = url.partition("://")
    match scheme.lower() if separator else "":
        case "file":
            if options:
                raise ConfigError(f"storage_{min(options)} is for redis:// and etcd://: a directory has an owner instead")
            from .file_store import FileStore  # noqa: PLC0415

            kind: Any = FileStore
        case "redis" | "rediss" | "unix":
            kind = _redis_store()
        case "etcd" | "etcds":
            from .etcd_store import EtcdStore  # noqa: PLC0415

            kind = EtcdStore
        case "":
            hint = f"; for a directory write file://{url}" if url.startswith("/") else ""
            raise ConfigError(f"storage={redacted(url)!r} is no URL: give {_EXAMPLES}{hint}")
        case _:
            raise ConfigError(f"storage={redacted(url)!r}: no store is known by {scheme}://: give {_EXAMPLES}")
    store: Store = kind(url, job, timeout=timeout, **options)
    return store


def redacted(url: str) -> str:
    """``url`` for logs and errors: without user, password and query. Of a malformed one rather less is shown."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***" if "@" in url or "?" in url else url
    before, at, after = rest.rpartition("@")
    if "?" in before:  # cut in the middle of one or the other: who could tell which
        return f"{scheme}://***"
    return f"{scheme}://{'***@' if at else ''}{after.partition('?')[0]}"


def _redis_store() -> Any:
    try:
        import redis  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("storage: for redis:// the package redis is missing: pip install ftlib[redis]") from None
    from .redis_store import RedisStore  # noqa: PLC0415

    return RedisStore
