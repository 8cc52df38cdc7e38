"""Operations of an accelerator, launched together, of every dtype and kind: right, and the same bits at all ranks."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator

import pytest
import torch

from ftlib.frameworks.accelerators.nccl.structures import TYPES
from ftlib.frameworks.base import Operation, OperationKind
from tests.frameworks.accelerators import orders
from tests.frameworks.crew import TIMEOUT, Crew, Worker
from tests.harness.gpu import PLACE, on_gpu

pytestmark = pytest.mark.process

OPS = {"SUM": sum, "MIN": min, "MAX": max}
SIZES = (1, 1000, 300_001)


@pytest.fixture(scope="module", params=["rehearsal", on_gpu(f"nccl@{PLACE}", id="nccl")])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    crew = Crew(request.param)
    yield crew
    crew.close()


def reduce_all(worker: Worker) -> list[str]:
    """Each dtype that is taken, with each reduction and several sizes, in one launch: what was wrong."""
    group, kinds = worker.group, list(itertools.product(TYPES, OPS, SIZES))
    rows = [worker.put(torch.full((size,), group.rank + 1).to(dtype)) for dtype, _, size in kinds]
    there = [(kind, row) for kind, row in zip(kinds, rows, strict=True) if group.takes(row)]
    work = group.submit_bulk([Operation(OperationKind.ALLREDUCE, row, op) for (_, op, _), row in there])
    assert work.wait(TIMEOUT)
    ranks = range(1, group.size + 1)
    return [f"{kind}: {row[0]}" for kind, row in there if not bool((row == OPS[kind[1]](ranks)).all())]


def reduce_fractions(worker: Worker) -> str:
    """Sums that are rounded: the digest of all results."""
    group, digest = worker.group, hashlib.blake2b(digest_size=8)
    chance = torch.Generator().manual_seed(group.rank)
    rows = [worker.put(torch.randn(size, generator=chance)) for size in SIZES * 5]
    for part in (rows[:1], rows[1:3], rows[3:]):
        assert group.submit_bulk([Operation(OperationKind.ALLREDUCE, row, "SUM") for row in part]).wait(TIMEOUT)
    for row in rows:
        digest.update(row.cpu().numpy().data)
    return digest.hexdigest()


def spread_out(worker: Worker, root: int) -> list[float]:
    """What each rank has after a broadcast."""
    group = worker.group
    rows = [worker.put(torch.full((size,), float(group.rank))) for size in SIZES]
    work = group.submit_bulk([Operation(OperationKind.BROADCAST, row, peer=root) for row in rows])
    assert work.wait(TIMEOUT)
    return [float(value) for row in rows for value in (row[0], row[-1])]


@pytest.mark.parametrize("size", [2, 4])
def test_every_operation(crew: Crew, size: int) -> None:
    hands = crew.hire(4)[:size]
    crew.build(hands)
    crew.run(hands, orders.accelerated)
    assert crew.run(hands, reduce_all) == [[]] * size
    assert len(set(crew.run(hands, reduce_fractions))) == 1
    assert crew.run(hands, spread_out, size - 1) == [[size - 1.0] * 6] * size
