"""Which chunk is asked for next, and what an average is applied to meanwhile."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from ftlib.core.calls.learner import NoFollowing
from ftlib.recovery.joiner.http_transport import SnapshotOffer
from ftlib.recovery.joiner.replay_state import Chunks
from ftlib.recovery.layout.manifest import split
from ftlib.recovery.layout.shards import ChunkRequest, Shard
from ftlib.state.registry import Registered

from .holders import Model, optimizer_of

SIZES = [3, 4, 5]
ENDS = [0, 12, 28, 48]
THREE = SnapshotOffer(48, 1, b"", tuple(pairwise(ENDS)))


def shard(index: int, version: int) -> Shard:
    return Shard(index, ENDS[index], ENDS[index + 1], version, ("a",))


def test_one_after_the_other_and_no_more_than_two_at_a_time() -> None:
    chunks = Chunks(THREE, 5)
    shards = [shard(0, 5)]
    assert chunks.next(shards, {0}) == ChunkRequest(1, 1, 6), "all is here: nothing that is pinned is wanted any more"
    assert chunks.next(shards, set()) == ChunkRequest(1, 1, 5), "the first is on its way"
    chunks.add(THREE, 7)
    shards.append(shard(1, 7))
    assert chunks.next(shards, set()) is None
    assert chunks.next(shards, {0}) == ChunkRequest(2, 2, 7)
    assert not chunks.all_pinned
    chunks.add(THREE, 8)
    assert chunks.all_pinned
    assert chunks.next([*shards, shard(2, 8)], {0, 1, 2}) is None


def test_an_average_is_applied_to_older_chunks_alone() -> None:
    model = Model(SIZES)
    registered = Registered({"model": model, "optimizer": optimizer_of(model)})
    chunks = Chunks(THREE, 5)
    chunks.settle(registered, split(registered, 0)[1])
    chunks.add(THREE, 7)

    def without(position: int) -> list[int]:
        return [place for place, row in enumerate(model.rows) if any(row is other for other in chunks.without(position))]

    assert (without(5), without(6), without(7), without(8)) == ([1, 2], [1, 2], [2], [2])


def test_counters_come_with_their_chunk() -> None:
    """And those of the others stay. Whichever of a parameter's state is first."""

    def adam(steps: int) -> tuple[nn.Module, torch.optim.Adam, Registered]:
        model = Model(SIZES)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(steps):
            for row in model.rows:
                row.grad = torch.ones_like(row)
            optimizer.step()
        for row in model.rows:
            optimizer.state[row] = dict(reversed(optimizer.state[row].items()))
        return model, optimizer, Registered({"model": model, "optimizer": optimizer})

    _, _, donor = adam(7)
    model, optimizer, joiner = adam(2)
    manifest, flat = split(joiner, 0)
    ends = [*manifest.borders, manifest.nbytes]
    offer = SnapshotOffer(manifest.nbytes, 1, split(donor, 0)[0].packed, tuple(pairwise([0, *ends])))
    chunks = Chunks(offer, 5)
    chunks.settle(joiner, flat)
    chunks.add(offer, 7)
    assert chunks.fresh
    chunks.take_over(joiner, chunks.pop_fresh())
    assert not chunks.fresh
    assert [int(optimizer.state[row]["step"]) for row in model.parameters()] == [2, 7, 2]


def test_a_state_that_has_grown_meanwhile() -> None:
    with pytest.raises(NoFollowing, match="has grown"):
        Chunks(THREE, 5).add(SnapshotOffer(60, 1, b"", (*THREE.chunks, (48, 60))), 7)
