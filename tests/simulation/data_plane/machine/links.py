"""The way of the data plane's bytes between simulated processes: TCP, so late or never, but not damaged."""

from __future__ import annotations

from consensus.simulation import Host


def connected(one: Host, other: Host) -> bool:
    """Whether bytes pass between two processes, both ways (an acknowledgement has to come back)."""
    return one.world.network.reachable(one.id, other.id)
