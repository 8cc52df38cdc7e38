"""Which process of its replica a ``Manager`` is, and the name of that replica, which its processes find in their store."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...errors import ConfigError, FTLibError
from ..process_group.meeting import create_store_client

__all__ = ["Place", "place_of"]

_NAMING = ("FTLIB_REPLICA", "FTLIB_SHARDS")
"""Variables that say which part of a replica this process is; ``ftlib run --shards`` sets them."""


@dataclass(frozen=True)
class Place:
    """Process ``rank`` of the ``size`` of a replica."""

    rank: int = 0
    size: int = 1
    store: str = ""
    """``host:port/prefix`` of the store in which process 0 writes the replica's name; empty if nothing is to be found there."""

    def settings(self, label: str | None, timeout: timedelta) -> dict[str, Any]:
        """What ``FTLib.init`` is to be told of it; none for a replica of one process, or if ftlib's variables tell it.

        ``label``: with which the replica's name begins. FTLibError if the processes do not find each other in ``timeout``.
        """
        if not self.store:
            return {}
        return {"replica": self._name(label, timeout), "shard": self.rank, "shards": self.size}

    def _name(self, label: str | None, timeout: timedelta) -> str:
        """The replica's name. It is another one each time that its processes ask, as a replica that comes back needs."""
        try:
            store = create_store_client(self.store, timeout)
            key = f"name/{store.add(f'asked/{self.rank}', 1)}"
            if self.rank == 0:
                store.set(key, f"{label or 'replica'}-{uuid.uuid4().hex[:12]}")
            store.wait([key], timeout)
            return str(store.get(key).decode())
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            where = self.store.partition("/")[0]
            missing = "does not answer" if self.rank == 0 else "does not answer, or process 0 of the replica has not come"
            raise FTLibError(
                f"process {self.rank} of {self.size} of this replica: the store at {where} {missing}, within "
                f"{timeout.total_seconds():g} s: start all processes of the replica, and give them one store ({error})"
            ) from error


def place_of(rank: int | None, size: int | None, host: str | None, port: int | None, environment: Mapping[str, str]) -> Place:
    """The place that a manager's arguments ``rank``, ``world_size``, ``store_addr`` and ``store_port`` say, or torchrun's
    variables of these. ConfigError if they cannot be.
    """
    own = environment.get("FTLIB_SHARDS")
    if own is not None and size is not None and str(size) != own:
        raise ConfigError(
            f"world_size={size}, but FTLIB_SHARDS={own}: leave out world_size and rank, or start {size} processes"
        )
    named = any(environment.get(name) for name in _NAMING)
    size = _number("world_size", size, "WORLD_SIZE", 1, environment)
    rank = _number("rank", rank, "RANK", 0, environment)
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(
            f"rank={rank} of world_size={size}: the processes of a replica have the ranks 0 to world_size - 1; leave both out "
            "for a replica of one process"
        )
    if size == 1 or named:
        return Place()
    host = host or environment.get("MASTER_ADDR")
    port = _number("store_port", port, "MASTER_PORT", 0, environment)
    if not host or not port:
        raise ConfigError(
            f"world_size={size}, but no store in which the processes of a replica find its name: give store_addr and "
            "store_port (MASTER_ADDR and MASTER_PORT, as torchrun does), or start the program with "
            f"`ftlib run -n N --shards {size}`"
        )
    attempt = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return Place(rank, size, f"{host}:{port}/ftlib/replica/{attempt}")


def _number(name: str, given: int | None, variable: str, default: int, environment: Mapping[str, str]) -> int:
    if given is not None:
        return given
    text = environment.get(variable, str(default))
    if not text.isdigit():
        raise ConfigError(f"{variable}={text!r} is no number: correct it, or give {name}=")
    return int(text)
