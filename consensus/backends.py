"""The backends of ``Consensus``, by how members learn who is alive: they ping each other, or renew leases in a shared store.

Everything else is the same in both, above all the evidence of crashes (see ``membership``).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from .config import Config, Liveness, Policy
from .errors import ConfigError
from .interface import Mode
from .membership import Membership


class Gossip(Membership):
    """One member of a gossip cluster, for one lifetime: SWIM detection with evidence, and one Paxos instance an epoch.

    Under policy ``storage``, records in a shared store decide instead of Paxos; detection is the same.
    """

    @classmethod
    def settled(cls, config: Config) -> Config:
        """See ``Membership``."""
        if config.liveness is not Liveness.PINGS:
            raise ConfigError("members of a gossip cluster ping each other: for leases in a store take shared_storage")
        return super().settled(config)


class SharedStorage(Membership):
    """One member of a cluster with a shared store, for one lifetime: leases say who is alive, records decide who is in.

    No introducers are needed: members find each other in the store.
    """

    usual_mode = Mode.PASSIVE

    @classmethod
    def settled(cls, config: Config) -> Config:
        """``config`` with leases and policy ``storage``. The default store is a directory in the user's cache."""
        if config.policy is Policy.ANY:
            raise ConfigError("policy=any goes with gossip: with shared storage the store decides")
        storage = config.storage or _in_the_cache()
        return super().settled(replace(config, policy=Policy.STORAGE, liveness=Liveness.LEASES, storage=storage))


def _in_the_cache() -> str:
    """The URL of the directory ``ftlib`` in the user's cache, which this creates: workers of one host meet there."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"  # XDG: ignore a relative path
    except RuntimeError:
        raise ConfigError(
            "storage: this user has no home directory for a cache: name a store, as in storage=file:///shared/directory"
        ) from None
    directory = cache / "ftlib"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"storage: {directory} cannot be made ({error.strerror}): name a store, as in storage=file:///shared/directory"
        ) from None
    return f"file://{quote(os.fsencode(directory))}"
