"""Checks that a Redis server keeps what a store promises: it must be the primary, and forget no decision."""

from __future__ import annotations

from ...errors import StoreRefusedError
from ...logs import CarefulLogger
from .redis_wire import RedisWire

_LOG = CarefulLogger()

_OLDEST = 5


async def check(wire: RedisWire, url: str) -> None:
    """Refuse (``StoreRefusedError``) an unfit server; warn of a server that can lose decisions when it fails."""
    try:
        info = _parse(await wire.ask("INFO", write=False))
    except StoreRefusedError as error:
        if "+info" not in str(error):
            raise
        _LOG.warning("whether the store %s evicts keys or has replicas cannot be checked: allow its user +info", url)
        return
    _refuse(info, url)
    if info.get("aof_enabled") == "0":
        _LOG.warning(
            "the store %s keeps no append-only file: if it restarts, it forgets decisions, and the job ends; "
            "set appendonly yes and appendfsync always",
            url,
        )
    if info.get("connected_slaves", "0") != "0":
        _LOG.warning(
            "the store %s has replicas: a failover to one can lose a decision and is not supported; "
            "after one start the job anew with an empty store",
            url,
        )


def _refuse(info: dict[str, str], url: str) -> None:
    mode = info.get("redis_mode", "standalone")
    version = info.get("redis_version", "")
    policy = info.get("maxmemory_policy", "")
    if mode == "sentinel":
        raise StoreRefusedError(f"the store {url} is a Redis Sentinel, which is not supported: give the URL of a single server")
    if mode == "cluster":
        raise StoreRefusedError(f"the store {url} is part of a Redis Cluster, which is not supported: use a single server")
    if version.partition(".")[0].isdecimal() and int(version.partition(".")[0]) < _OLDEST:
        raise StoreRefusedError(f"the store {url} is Redis {version}: version {_OLDEST} or newer is needed")
    if info.get("role") == "slave":
        raise StoreRefusedError(f"the store {url} is a replica: give the URL of its primary")
    if policy.startswith("allkeys"):
        raise StoreRefusedError(
            f"the store {url} may evict what was decided (maxmemory-policy {policy}): set maxmemory-policy noeviction"
        )


def _parse(info: bytes) -> dict[str, str]:
    lines = info.decode(errors="replace").splitlines()
    return {name: value.strip() for name, separator, value in (line.partition(":") for line in lines) if separator}
