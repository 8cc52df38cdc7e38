"""``DistributedSampler``: torchft's constructor, and its shards."""

from __future__ import annotations

import inspect

import pytest

from ftlib import ConfigError, DistributedSampler


def test_the_shards_are_the_dataset() -> None:
    shards = [
        list(DistributedSampler(range(24), replica, 3, group_rank=rank, num_replicas=2, shuffle=False))
        for replica in range(3)
        for rank in range(2)
    ]
    assert shards[3] == [3, 9, 15, 21]
    assert sorted(index for shard in shards for index in shard) == list(range(24))


def test_the_constructor_is_the_one_that_people_know() -> None:
    names = list(inspect.signature(DistributedSampler).parameters)
    assert names == ["dataset", "replica_rank", "num_replica_groups", "group_rank", "num_replicas", "kwargs"]
    sampler = DistributedSampler(range(10), replica_rank=1, num_replica_groups=2, shuffle=True, seed=3, drop_last=True)
    assert (sampler.global_rank, sampler.global_world_size, sampler.num_replicas) == (1, 2, 2)
    sampler.set_epoch(1)


@pytest.mark.parametrize(("replica", "rank", "text"), [(2, 0, "replica_rank=2"), (0, 3, "group_rank=3")])
def test_a_place_that_is_not_there_is_refused(replica: int, rank: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        DistributedSampler(range(10), replica, 2, rank, 3)
