"""Which process of its replica a ``Manager`` is, and the name of that replica, which its processes agree on in their store."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ...errors import ConfigError, FTLibError
from ..process_group.meeting import create_store_client

__all__ = ["Place", "place_of"]

_LOOK = 0.02
"""Seconds between two looks into the store."""


@dataclass(frozen=True)
class Place:
    """Process ``rank`` of the ``size`` of a replica."""

    rank: int = 0
    size: int = 1
    store: str = ""
    """``host:port/prefix`` of the store in which the processes agree on the replica's name; empty if it has one."""

    def settings(self, label: str | None, timeout: timedelta) -> dict[str, Any]:
        """What ``FTLib.init`` is to be told of it; nothing for a replica of one process.

        ``label``: with which the replica's name begins, if it has none. FTLibError if the processes do not find each other in
        ``timeout``.
        """
        if self.size == 1:
            return {}
        part = {"shard": self.rank, "shards": self.size}
        return {"replica": _Naming(self, timeout).name(label or "replica"), **part} if self.store else part


class _Naming:
    """How the processes of a replica agree on a name in their store, which may hold what is left of earlier ones.

    Each process writes under its rank who it is: a word that it has just drawn. Process 0 calls those that it finds there, and
    each answers the newest call that is for itself. So whoever has answered is alive, and of this start; once all have, process
    0 gives them the name. Whoever is started again draws another word, and whoever waited for the one before is called anew.
    """

    def __init__(self, place: Place, timeout: timedelta) -> None:
        self._place = place
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._own = uuid.uuid4().hex[:12]
        self._others = tuple(range(1, place.size))

    def name(self, label: str) -> str:
        """The name. FTLibError says who was waited for."""
        try:
            store = create_store_client(self._place.store, self._timeout)
            return self._give(store, f"{label}-{self._own}") if self._place.rank == 0 else self._take(store)
        except (dist.DistStoreError, dist.DistNetworkError) as error:
            raise self._late("the store does not answer") from error

    def _give(self, store: Any, name: str) -> str:
        """Process 0: call the others until all have answered."""
        while missing := [rank for rank in self._others if not self._answered(store, rank)]:
            self._pause(f"process {', '.join(map(str, missing))} of the replica has not come")
        store.set(f"name/{self._own}", name)
        return name

    def _answered(self, store: Any, rank: int) -> bool:
        there = _read(store, f"here/{rank}")
        if there is None:
            return False
        if _read(store, f"call/{there}") != self._own:
            store.set(f"call/{there}", self._own)
        return _read(store, f"answer/{self._own}/{rank}") == there

    def _take(self, store: Any) -> str:
        """Any other process: answer whoever calls, until there is a name from it."""
        store.set(f"here/{self._place.rank}", self._own)
        while True:
            caller = _read(store, f"call/{self._own}")
            if caller is not None:
                store.set(f"answer/{caller}/{self._place.rank}", self._own)
                if (name := _read(store, f"name/{caller}")) is not None:
                    return name
            self._pause("process 0 of the replica has not come" if caller is None else "not all of the replica have come")

    def _pause(self, why: str) -> None:
        if time.monotonic() > self._deadline:
            raise self._late(why)
        time.sleep(_LOOK)  # between two looks: the store tells nobody of a new key

    def _late(self, why: str) -> FTLibError:
        place, where = self._place, self._place.store.partition("/")[0]
        return FTLibError(
            f"process {place.rank} of {place.size} of this replica, at the store {where}: {why}, within "
            f"{self._timeout.total_seconds():g} s: start all processes of the replica, and give them one store"
        )


def _read(store: Any, key: str) -> str | None:
    """What is there, without waiting for it."""
    return str(store.get(key).decode()) if store.check([key]) else None


def place_of(rank: int | None, size: int | None, host: str | None, port: int | None, environment: Mapping[str, str]) -> Place:
    """The place that a manager's arguments ``rank``, ``world_size``, ``store_addr`` and ``store_port`` say, or else the
    variables of ``ftlib run --shards``, or torchrun's. ConfigError if they cannot be, or contradict each other.
    """
    given = {"world_size": size, "rank": rank}
    size = _number("world_size", size, ("FTLIB_SHARDS", "WORLD_SIZE"), 1, environment)
    rank = _number("rank", rank, ("FTLIB_SHARD", "RANK"), 0, environment)
    if size < 1 or not 0 <= rank < size:
        raise ConfigError(
            f"rank={rank} of world_size={size}: the processes of a replica have the ranks 0 to world_size - 1; leave both out "
            "for a replica of one process"
        )
    own = environment.get("FTLIB_SHARDS", "1")
    if size == 1 and own == "1":  # RANK and WORLD_SIZE may count replicas then
        return Place()
    said = {"world_size": ("FTLIB_SHARDS", "WORLD_SIZE"), "rank": ("FTLIB_SHARD", "RANK")}
    for name, variables in said.items():
        for variable in variables:
            if given[name] is not None and environment.get(variable, str(given[name])) != str(given[name]):
                raise ConfigError(
                    f"{name}={given[name]}, but {variable}={environment[variable]}: leave out rank and world_size, or start "
                    "this process without these variables"
                )
    if environment.get("FTLIB_REPLICA"):
        return Place(rank, size)
    host = host or environment.get("MASTER_ADDR")
    port = _number("store_port", port, ("MASTER_PORT",), 0, environment)
    if not host or not port:
        raise ConfigError(
            f"world_size={size}, but no store in which the processes of a replica agree on its name: give store_addr and "
            "store_port (MASTER_ADDR and MASTER_PORT, as torchrun does), or start the program with "
            f"`ftlib run -n N --shards {size}`"
        )
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return Place(rank, size, f"{host}:{port}/ftlib/replica")


def _number(name: str, given: int | None, variables: tuple[str, ...], default: int, environment: Mapping[str, str]) -> int:
    """What was given, or the first of these variables that is set says."""
    if given is not None:
        return given
    variable = next((each for each in variables if environment.get(each)), "")
    text = environment.get(variable, str(default))
    if not text.isdigit():
        raise ConfigError(f"{variable}={text!r} is no number: correct it, or give {name}=")
    return int(text)
