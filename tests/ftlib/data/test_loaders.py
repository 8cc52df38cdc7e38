"""``ElasticSampler`` under real loaders: without workers, with them, with workers that stay; and torchdata's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ftlib import ElasticSampler

SIZE = 23
LOADERS: dict[str, dict[str, Any]] = {
    "alone": {},
    "workers": {"num_workers": 2, "prefetch_factor": 3},
    "staying": {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True},
}


def _dataset() -> TensorDataset:
    return TensorDataset(torch.arange(SIZE))


def _loader(sampler: ElasticSampler, kind: str) -> DataLoader[Any]:
    return DataLoader(_dataset(), batch_sampler=sampler, **LOADERS[kind])


@pytest.fixture
def sampler() -> ElasticSampler:
    sampler = ElasticSampler(_dataset(), batch_size=4, seed=3)
    sampler.bind("me")
    sampler.found(["me"])
    return sampler


def _train(sampler: ElasticSampler, loader: Any, epochs: int) -> Iterator[tuple[int, list[int]]]:
    """A lone member's loop. Gives what its calls used up."""
    step = 0
    for epoch in sampler.epochs(epochs):
        for (batch,) in loader:
            share = sampler.begin(1)
            step += bool(share.samples)
            sampler.finished({"me": share}, step)
            if share.samples:
                assert share.samples == len(batch)
                yield epoch, batch.tolist()


@pytest.mark.parametrize("kind", LOADERS)
def test_a_lone_member_sees_every_sample_once_an_epoch(kind: str, sampler: ElasticSampler) -> None:
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for epoch, batch in _train(sampler, _loader(sampler, kind), 3):
        seen[epoch] += batch
    assert all(sorted(indices) == list(range(SIZE)) for indices in seen.values())
    assert seen[0] != seen[1]
    told = [row for epoch in (1, 2) for row in sampler.ledger(epoch)]
    assert [index for row in told for index in row.indices] == seen[1] + seen[2]


@pytest.mark.parametrize("kind", LOADERS)
def test_unregistered_it_is_a_plain_sampler(kind: str) -> None:
    sampler = ElasticSampler(_dataset(), batch_size=4)
    loader = _loader(sampler, kind)
    first, second = ([batch.tolist() for (batch,) in loader] for _ in range(2))
    assert len(first) == len(loader) == 6
    assert [sorted(itertools.chain(*batches)) for batches in (first, second)] == [list(range(SIZE))] * 2
    assert first != second
    sampler.set_epoch(0)
    assert [batch.tolist() for (batch,) in loader] == first
    assert [epoch for epoch in sampler.epochs(4) for _ in zip(loader, range(1), strict=False)] == [1, 2, 3]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_joiner_with_its_loader_full_ends_with_the_others(kind: str) -> None:
    senior, joiner = (ElasticSampler(_dataset(), batch_size=2, seed=1) for _ in range(2))
    senior.bind("a")
    senior.found(["a"])
    joiner.bind("b")
    assert senior.epoch == -1
    senior.set_epoch(3)
    ours, theirs = iter(_loader(senior, kind)), iter(_loader(joiner, kind))
    next(theirs)
    seen: list[int] = []
    for step, (batch,) in enumerate(ours):
        if step == 2:  # it came in with this call, and gets the state
            joiner.begin(1)
            assert joiner.epoch == -1
            joiner.load_state_dict(senior.state_dict())
            shares = {"a": senior.begin(1), "b": joiner.follow()}
        elif step > 2:
            (other,) = next(theirs)  # StopIteration: it left its loop before the senior did
            shares = {"a": senior.begin(1), "b": joiner.begin(1)}
            seen += other.tolist()[: shares["b"].samples]
            assert joiner.epoch == senior.epoch == 3
        else:
            shares = {"a": senior.begin(1)}
        seen += batch.tolist()[: shares["a"].samples]
        for member in (senior, joiner) if step >= 2 else (senior,):
            member.finished(shares, step + 1)
    assert next(theirs, None) is None
    assert joiner.epoch == senior.epoch == 3
    assert list(joiner.epochs(6)) == [4, 5]
    assert sorted(seen) == list(range(SIZE))
    assert senior.state_dict()["state"] == joiner.state_dict()["state"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # called by torchdata 0.11
@pytest.mark.parametrize("workers", [0, 2])
def test_the_stateful_loader_of_torchdata(workers: int, sampler: ElasticSampler) -> None:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    loader = loaders.StatefulDataLoader(_dataset(), batch_sampler=sampler, num_workers=workers)
    seen = [batch for _, batch in zip(range(3), _train(sampler, loader, 1), strict=False)]
    again = ElasticSampler(_dataset(), batch_size=4, seed=3)
    again.load_state_dict(sampler.state_dict())
    again.bind("me")
    again.found(["me"])
    seen += _train(again, loaders.StatefulDataLoader(_dataset(), batch_sampler=again, num_workers=workers), 1)
    indices = sorted(index for _, batch in seen for index in batch)
    assert indices == list(range(SIZE))
