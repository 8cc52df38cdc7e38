"""Where the replicas of a ``Manager`` meet: torchft's arguments and variables as settings of ``FTLib.init``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import ConfigError

__all__ = ["duration", "place", "settings_of"]

logger = logging.getLogger("ftlib")

LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
_STORES = ("file://", "redis://", "rediss://", "etcd://", "etcds://")
"""Addresses of a storage, in which the replicas meet; any other address is that of a lighthouse."""
_TELLING = ("FTLIB_INTRODUCERS", "FTLIB_STORAGE", "FTLIB_SOCKET_FDS", "FTLIB_CONFIG")
"""Variables that say how to meet without a lighthouse; ``ftlib run`` sets the first."""
_REMEDY = (
    "start the program with `ftlib run -n N`, or set FTLIB_INTRODUCERS=host:port, or give a storage that all replicas reach: "
    f"lighthouse_addr (or {LIGHTHOUSE}) = file:///shared/directory, redis://host or etcd://host"
)

_told: set[str] = set()
"""Lighthouses that were ignored, each with one warning."""


def duration(variable: str, default: timedelta, environment: Mapping[str, str]) -> timedelta:
    """``default``, or as many seconds as the variable says, which wins. ConfigError if it says no number."""
    text = environment.get(variable)
    if text is None:
        return default
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        raise ConfigError(f"{variable}={text!r} must be a number of seconds") from None


def place(rank: int | None, world_size: int | None, environment: Mapping[str, str]) -> None:
    """Check this process's place in its replica. ConfigError for replicas of several processes, which are not there yet."""
    size = _number("world_size", world_size, "WORLD_SIZE", 1, environment)
    if size != 1:
        raise ConfigError(
            f"world_size={size}: replicas of several processes are not there yet: run one process in each replica "
            "(WORLD_SIZE=1, or world_size=1)"
        )
    if _number("rank", rank, "RANK", 0, environment) != 0:
        raise ConfigError("rank: a replica of one process has rank 0 alone: leave out rank, or set RANK=0")


def settings_of(lighthouse: str | None, terms: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of ``FTLib.init``. ``terms``: settings that follow from the manager's arguments; a variable ``FTLIB_...``
    counts before them. ConfigError if nothing says how to meet.
    """
    found = {name: value for name, value in terms.items() if f"FTLIB_{name.upper()}" not in environment}
    address = lighthouse or environment.get(LIGHTHOUSE, "")
    if address.startswith(_STORES):
        return {**found, "consensus": "shared_storage", "storage": address}
    if not any(environment.get(name) for name in _TELLING) and not Path("ftlib.toml").is_file():
        given = f"{address} is a lighthouse, which is not used here" if address else "nothing says how the replicas meet"
        raise ConfigError(f"Manager: {given}: {_REMEDY}")
    if address and address not in _told:
        _told.add(address)
        logger.warning("Manager: the lighthouse %s is ignored: the replicas meet as ftlib's own settings say", address)
    return found


def _number(name: str, given: int | None, variable: str, default: int, environment: Mapping[str, str]) -> int:
    if given is not None:
        return given
    text = environment.get(variable, str(default))
    if not text.isdigit():
        raise ConfigError(f"{variable}={text!r} is no number: correct it, or give {name}=")
    return int(text)
