from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib.core.tensors.dtypes import wire_dtype
from ftlib.core.tensors.layout import HEAD_BYTES, lay_out, lay_out_in_order
from ftlib.core.tensors.staging import Staging, StagingPool
from ftlib.core.tensors.trailer import CARRIERS

dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.int64])
shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)


@given(st.lists(st.tuples(dtypes, shapes), max_size=12), st.sampled_from([64, 1000, 10**6]))
def test_every_element_has_one_place(specs: list[tuple[torch.dtype, tuple[int, ...]]], bucket_bytes: int) -> None:
    layout = lay_out("average", specs, "SUM", bucket_bytes)
    assert layout == lay_out("average", list(specs), "SUM", bucket_bytes)
    seen: dict[int, list[tuple[int, int]]] = {}
    for bucket in layout.buckets:
        end = 0
        for piece in bucket.pieces:
            assert piece.offset == end
            end += piece.stop - piece.start
            assert wire_dtype(specs[piece.index][0], "SUM") is bucket.dtype
            whole = (piece.start, piece.stop) == (0, math.prod(specs[piece.index][1]))
            assert (piece.shape is not None) == whole or piece.shape is None
            seen.setdefault(piece.index, []).append((piece.start, piece.stop))
        assert end == bucket.count
        assert bucket.nbytes <= bucket_bytes
    for index, (_, shape) in enumerate(specs):
        rows = seen.get(index, [])
        assert [start for start, _ in rows] == [0, *(stop for _, stop in rows)][: len(rows)]
        assert sum(stop - start for start, stop in rows) == math.prod(shape)
    assert layout.head.dtype in CARRIERS
    assert layout.head.nbytes <= HEAD_BYTES


def test_signatures_tell_what_members_must_agree_on() -> None:
    spec = [(torch.float32, (4, 5))]
    base = lay_out("average", spec, "SUM", 1000)
    others = [
        lay_out("allreduce SUM", spec, "SUM", 1000),
        lay_out("average", [(torch.float32, (5, 4))], "SUM", 1000),
        lay_out("average", [(torch.float64, (4, 5))], "SUM", 1000),
        lay_out("average", spec * 2, "SUM", 1000),
        lay_out("average", spec, "MAX", 1000),
        lay_out("average", spec, "SUM", 2000),
    ]
    assert len({layout.signature for layout in [base, *others]}) == 7


def test_staging_spares_what_the_call_before_left() -> None:
    layout = lay_out("average", [(torch.float32, (1000,))], "SUM", 1000)
    staging = Staging(layout, in_flight=2)
    staging.turn(())
    first = [staging.slot(number, 34) for number in range(4)]
    assert [staging.slot(number, 34) for number in range(4)] == first
    staging.turn(first)
    second = [staging.slot(number, 34) for number in range(4)]
    assert all(a is not b for a, b in zip(first[:2], second[:2], strict=True))
    assert second[2:] == first[2:]
    staging.abandon(second[0])
    assert staging.slot(0, 34) is not second[0]
    grown = staging.slot(0, 51)
    assert grown.flat.numel() == layout.head.count + 51
    assert staging.slot(0, 17) is grown
    assert grown.flat.numel() == layout.head.count + 17


def test_a_call_in_another_order_takes_no_further_memory() -> None:
    """A wrapper lays its call out anew once it knows the order of its gradients; the buffers before that are of no use then."""
    specs = [(torch.float32, (size,)) for size in (8, 5, 3)]
    first, later = (lay_out_in_order("average", specs, order, 64, 16) for order in ([2, 1, 0], [0, 2, 1]))
    other = lay_out_in_order("average", specs[:2], [1, 0], 64, 16)
    pool = StagingPool(2)
    kept = [pool.staging(first), pool.staging(other)]
    newest = pool.staging(later)
    assert pool.staging(later) is newest
    assert pool.staging(other) is kept[1]
    assert pool.staging(first) is not kept[0]
