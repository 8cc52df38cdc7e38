"""Which part of which replica this process is: from its settings, and from torchrun's variables inside a replica. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """``shard`` of ``shards`` of the replica of that name; each shard of a replica is one process."""

    replica: str = ""
    shard: int = 0
    shards: int = 1


LONE = Part()
"""A process that is a replica by itself."""


def part_of(found: Mapping[str, Any], environment: Mapping[str, str]) -> Part:
    """The part that the settings ``found`` name. ConfigError if they contradict each other, or torchrun's variables.

    Where a replica is named but not the number of its shards, torchrun's RANK and WORLD_SIZE are those within the replica.
    """
    replica, shard, shards = found.get("replica", ""), found.get("shard"), found.get("shards")
    inside = bool(replica) and shards != 1
    rank, size = (_number(environment, name) if inside else None for name in ("RANK", "WORLD_SIZE"))
    if rank is not None and size is not None:
        if not rank < size:
            raise ConfigError(f"RANK={rank} is not below WORLD_SIZE={size}: correct them, or give shard and shards")
        for name, given, theirs in (("shard", shard, rank), ("shards", shards, size)):
            if given not in (None, theirs):
                raise ConfigError(
                    f"{name}={given} of replica {replica!r} contradicts torchrun's variables (RANK={rank}, WORLD_SIZE={size}): "
                    "run one torchrun a replica, and give replica alone"
                )
        shard, shards = rank, size
    shards = 1 if shards is None else shards
    if shards > 1 and not replica:
        raise ConfigError(
            f"shards={shards}, but no replica is named: give replica (FTLIB_REPLICA), equal at its {shards} processes"
        )
    if shards > 1 and shard is None:
        raise ConfigError(f"shards={shards}, but not which one this is: give shard (FTLIB_SHARD), 0 to {shards - 1}")
    shard = 0 if shard is None else shard
    if not 0 <= shard < shards:
        raise ConfigError(
            f"shard={shard} is not among the {shards} of a replica: give 0 to {shards - 1}, and the same shards everywhere"
        )
    return Part(replica, shard, shards)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} is no number, though a launcher set it: correct it, or give shard and shards")
    return int(text)
