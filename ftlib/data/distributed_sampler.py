"""``DistributedSampler``: a fixed share of the data for each place in a job, for programs that come from torchft.

It has the constructor of ``torchft.data.DistributedSampler`` (meta-pytorch/torchft, ``torchft/data.py``), and its meaning.
"""

from __future__ import annotations

from typing import Any

import torch.distributed
import torch.utils.data

from ..errors import ConfigError


class DistributedSampler(torch.utils.data.DistributedSampler[Any]):
    """Shards a dataset over a fixed number of replica groups; a group that is away leaves its shard unread.

    Not elastic: use ``ElasticSampler`` where every sample shall be used once.
    """

    def __init__(
        self,
        dataset: Any,
        replica_rank: int,
        num_replica_groups: int,
        group_rank: int | None = None,
        num_replicas: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Take shard ``group_rank + num_replicas * replica_rank`` of ``num_replicas * num_replica_groups``.

        ``num_replica_groups``: the most there will be. ``group_rank``, ``num_replicas``: rank and size within the group;
        None: those of ``torch.distributed`` if it is initialized, else a group of one. ``kwargs``: ``shuffle``, ``seed``,
        ``drop_last``, as in torch. Raises ConfigError if a rank is out of range.
        """
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        if group_rank is None:
            group_rank = torch.distributed.get_rank() if grouped else 0
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size() if grouped else 1
        for name, rank, count, of in (
            ("replica_rank", replica_rank, num_replica_groups, "num_replica_groups"),
            ("group_rank", group_rank, num_replicas, "num_replicas"),
        ):
            if not 0 <= rank < count:
                raise ConfigError(f"{name}={rank} must be at least 0 and less than {of}={count}")
        self.global_rank = group_rank + num_replicas * replica_rank
        self.global_world_size = num_replicas * num_replica_groups
        super().__init__(dataset, rank=self.global_rank, num_replicas=self.global_world_size, **kwargs)
