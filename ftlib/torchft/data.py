"""``DistributedSampler``: a dataset cut into a fixed number of shares, one for each process of each replica that may come."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler as _DistributedSampler

from ..errors import ConfigError

__all__ = ["DistributedSampler"]


class DistributedSampler(_DistributedSampler[Any]):
    """Of ``num_replicas * num_replica_groups`` shares the one with number ``group_rank + num_replicas * replica_rank``.

    The share of a replica that is gone is not drawn by the others: ``ftlib.ElasticSampler`` draws every sample.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        replica_rank: int,
        num_replica_groups: int,
        group_rank: int | None = None,
        num_replicas: int | None = None,
        **kwargs: Any,
    ) -> None:
        """``replica_rank``: the number of this replica. ``num_replica_groups``: the most replicas that there will be.
        ``group_rank``, ``num_replicas``: this process's place in its replica; by default that of torch's process group, and
        without one 0 of 1. ``kwargs``: of torch's sampler.
        """
        there = dist.is_available() and dist.is_initialized()
        rank = group_rank if group_rank is not None else dist.get_rank() if there else 0
        size = num_replicas if num_replicas is not None else dist.get_world_size() if there else 1
        if not (0 <= rank < size and 0 <= replica_rank < num_replica_groups):
            raise ConfigError(
                f"DistributedSampler: group_rank={rank} must be below num_replicas={size}, and replica_rank={replica_rank} "
                f"below num_replica_groups={num_replica_groups}"
            )
        self.global_rank = rank + size * replica_rank
        self.global_world_size = size * num_replica_groups
        super().__init__(dataset, rank=self.global_rank, num_replicas=self.global_world_size, **kwargs)
