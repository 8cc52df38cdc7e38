"""Where the replicas of a ``Manager`` meet: torchft's arguments and variables as settings of ``FTLib.init``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from consensus import CarefulLogger

from ...common.threads import LONGEST
from ...errors import ConfigError

__all__ = ["duration", "settings_of"]

logger = CarefulLogger("ftlib")

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
    """``default``, or as many seconds as the variable says, which wins; at most ``LONGEST``. ConfigError if it says no number
    above 0.
    """
    text = environment.get(variable)
    try:
        seconds = default.total_seconds() if text is None else float(text)
    except ValueError:
        seconds = math.nan
    if text is not None and not seconds > 0:
        raise ConfigError(f"{variable}={text!r} must be a number of seconds above 0")
    return timedelta(seconds=min(seconds, LONGEST))


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
