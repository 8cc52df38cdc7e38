"""The gossip backend of ``Consensus``: SWIM detection with evidence, and one Paxos instance an epoch.

Under policy ``storage`` records in a shared store decide instead, and detection stays as it is.
"""

from __future__ import annotations

from .config import Config, Liveness
from .errors import ConfigError
from .membership import Membership

__all__ = ["Gossip"]


class Gossip(Membership):
    """One member of a gossip cluster, for one lifetime."""

    @classmethod
    def settled(cls, config: Config) -> Config:
        """See ``Membership``."""
        if config.liveness is not Liveness.PINGS:
            raise ConfigError("members of a gossip cluster ping each other: for leases in a store take shared_storage")
        return super().settled(config)
