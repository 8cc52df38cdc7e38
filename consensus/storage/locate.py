"""Finds a store by the scheme of its URL (setting ``storage``). The modules of a kind of store are imported on first use."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from .store import TIMEOUT, Store, redacted

_EXAMPLES = "file:///shared/directory, redis://host:6379 or etcd://host:2379"


def store_at(url: str, job: str, *, timeout: float = TIMEOUT, **options: Any) -> Store:
    """The store at ``url``, for ``job``; not yet open.

    ``timeout``: seconds an operation may take. ``options``: further options of that kind of store. Raises ``ConfigError``.
    """
    if timeout <= 0:
        raise ConfigError(f"storage: a timeout of {timeout:g} s leaves no time: give some seconds")
    scheme, separator, _ = url.partition("://")
    match scheme.lower() if separator else "":
        case "file":
            if options:
                raise ConfigError(f"storage_{min(options)} is for redis:// and etcd://: a directory has an owner instead")
            from .files.file_store import FileStore  # noqa: PLC0415

            kind: Any = FileStore
        case "redis" | "rediss" | "unix":
            kind = _redis_store()
        case "etcd" | "etcds":
            from .etcd.etcd_store import EtcdStore  # noqa: PLC0415

            kind = EtcdStore
        case "":
            hint = f"; for a directory write file://{url}" if url.startswith("/") else ""
            raise ConfigError(f"storage={redacted(url)!r} is no URL: give {_EXAMPLES}{hint}")
        case _:
            raise ConfigError(f"storage={redacted(url)!r}: no store is known by {scheme}://: give {_EXAMPLES}")
    store: Store = kind(url, job, timeout=timeout, **options)
    return store


def _redis_store() -> Any:
    try:
        import redis  # noqa: F401, PLC0415
    except ImportError:
        raise ConfigError("storage: for redis:// the package redis is missing: pip install ftlib[redis]") from None
    from .redis.redis_store import RedisStore  # noqa: PLC0415

    return RedisStore
