"""Down to one worker by kills and back up by joins."""

from __future__ import annotations

import random
import time

from tests.harness.cluster import Cluster

__all__ = ["shrink_and_grow"]


def shrink_and_grow(cluster: Cluster, size: int, chance: random.Random) -> None:
    """From ``size`` workers to one and back; each change is seen in an average before the next."""
    while len(workers := cluster.alive()) > 1:
        time.sleep(chance.random() * 0.05)
        chance.choice(workers).kill()
        cluster.training(len(workers) - 1)
    cluster.advanced()
    while len(cluster.alive()) < size:
        cluster.join()
        cluster.training()
