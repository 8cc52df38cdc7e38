"""Buckets in the order in which gradients become ready, and the memory that they are staged in."""

from __future__ import annotations

import itertools
import math

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftlib.core.tensors.dtypes import wire_dtype
from ftlib.core.tensors.layout import Layout, lay_out, lay_out_in_order
from ftlib.core.tensors.staging import Slot, Staging

Spec = tuple[torch.dtype, tuple[int, ...]]
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])
SIZES = st.sampled_from([64, 1000, 10**5])


@st.composite
def cases(draw: st.DrawFn, longest: int = 40) -> tuple[list[Spec], list[int], int, int]:
    """Tensors, the order in which they become ready, and the sizes of buckets."""
    shapes = st.lists(st.integers(0, longest), max_size=3).map(tuple)
    specs = draw(st.lists(st.tuples(dtypes, shapes), max_size=12))
    return specs, draw(st.permutations(range(len(specs)))), draw(SIZES), draw(SIZES)


def arranged(case: tuple[list[Spec], list[int], int, int]) -> Layout:
    return lay_out_in_order("average", *case)


@given(cases())
@example(([(torch.float32, ())] * 4 + [(torch.float32, (13,))], [0, 1, 2, 3, 4], 64, 1000))  # fill the first one, and more
def test_every_element_has_one_place(case: tuple[list[Spec], list[int], int, int]) -> None:
    specs, _, bucket_bytes, first_bytes = case
    layout = arranged(case)
    parts: dict[int, list[tuple[int, int]]] = {}
    firsts = set()
    for bucket in layout.buckets:
        end = 0
        for piece in bucket.pieces:
            assert piece.offset == end
            end += piece.stop - piece.start
            assert wire_dtype(specs[piece.index][0], "SUM") is bucket.dtype
            assert piece.shape is None or (piece.start, piece.stop) == (0, math.prod(specs[piece.index][1]))
            parts.setdefault(piece.index, []).append((piece.start, piece.stop))
        assert end == bucket.count
        assert bucket.nbytes <= bucket_bytes
        if bucket.pieces and bucket.dtype not in firsts:
            firsts.add(bucket.dtype)
            assert bucket.nbytes <= first_bytes or len(bucket.pieces) == 1
        if any(piece.shape is None for piece in bucket.pieces):
            assert len(bucket.pieces) == 1, "a tensor larger than a bucket has buckets of its own"
    for index, (_, shape) in enumerate(specs):
        rows = parts.get(index, [])
        assert [start for start, _ in rows] == [0, *(stop for _, stop in rows)][: len(rows)]
        assert sum(stop - start for start, stop in rows) == math.prod(shape)


@given(cases())
def test_buckets_come_in_the_order_in_which_they_are_complete(case: tuple[list[Spec], list[int], int, int]) -> None:
    turn = {index: number for number, index in enumerate(case[1])}
    complete = [max(turn[piece.index] for piece in bucket.pieces) for bucket in arranged(case).buckets if bucket.pieces]
    assert complete == sorted(complete)


@given(cases(), st.randoms())
def test_another_order_is_the_same_call_and_other_tensors_are_not(
    case: tuple[list[Spec], list[int], int, int], rng: object
) -> None:
    specs, order, *sizes = case
    layout = arranged(case)
    assert layout == arranged(case)
    other = list(order)
    rng.shuffle(other)  # type: ignore[attr-defined]
    reordered = lay_out_in_order("average", specs, other, *sizes)
    assert layout.same_call(reordered.signature)
    assert (layout.signature == reordered.signature) == (layout.check == reordered.check) == (order == other)
    grown = lay_out_in_order("average", [*specs, (torch.float32, (3,))], [*order, len(specs)], *sizes)
    wider = lay_out_in_order("average", specs, order, 2 * sizes[0], sizes[1])
    plain = lay_out("average", specs, "SUM", sizes[0])
    assert not any(layout.same_call(each.signature) for each in (grown, wider, plain))


@given(cases())
def test_at_most_a_small_bucket_goes_beside_the_head(case: tuple[list[Spec], list[int], int, int]) -> None:
    """So only that has a second slot."""
    layout = arranged(case)
    assert layout.spares in (1, 2)
    if layout.spares == 2:
        assert not layout.head.count
        assert layout.buckets[1].nbytes <= 2 * case[3]


# --- staging ------------------------------------------------------------------------------------------------------------

FLAT = lay_out_in_order("average", [(torch.float32, (5, 50)), (torch.float32, (7,))], [1, 0], 400, 400)
"""A small tensor, and one of 1000 bytes in three buckets."""


def staged(staging: Staging) -> list[Slot]:
    return [staging.slot(number, 34) for number in range(len(staging.layout.buckets))]


def test_the_parts_of_a_tensor_lie_side_by_side() -> None:
    slots = staged(Staging(FLAT, 2))
    parts = [slot for slot in slots if slot.bucket.pieces and slot.bucket.pieces[0].index == 0]
    assert [slot.bucket.count for slot in parts] == [100, 100, 50]
    ends = [slot.host.data_ptr() + slot.host.nbytes for slot in parts]
    assert [slot.host.data_ptr() for slot in parts[1:]] == ends[:-1]
    for number, slot in enumerate(parts):
        slot.data.fill_(float(number))
    assert [slot.data[0].item() for slot in parts] == [0.0, 1.0, 2.0]


@given(cases(longest=5))
@settings(max_examples=30)
def test_each_bucket_has_memory_of_its_own(case: tuple[list[Spec], list[int], int, int]) -> None:
    slots = staged(Staging(arranged(case), 2))
    spans = sorted((slot.buffer.data_ptr(), slot.buffer.nbytes) for slot in slots if slot.buffer.nbytes)
    assert all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(spans))
    assert slots[0].flat.numel() == slots[0].bucket.count + 34
    assert [slot.host.numel() for slot in slots] == [slot.bucket.count for slot in slots]


def test_a_call_after_one_that_was_given_up_spares_the_same_results() -> None:
    staging = Staging(FLAT, 2)
    results = staged(staging.turn(()))
    for _ in range(3):  # each of them begins, and is given up
        begun = staged(staging.turn(results))
        assert begun[0] is not results[0]
    assert staged(staging.turn(begun))[0] is results[0], "nobody needs them any more"
    elsewhere = staged(Staging(FLAT, 2))
    before = staged(staging)
    assert staged(staging.turn(elsewhere)) == before, "they are results of another layout's call"
    assert staged(staging.turn(())) == before


def test_what_the_program_sees_as_its_gradient_is_set_aside_until_it_lets_go() -> None:
    staging = Staging(FLAT, 2)
    slots = staged(staging)
    parts = slots[-3:]
    owner = torch.nn.Parameter(torch.zeros(5, 50))
    whole = parts[0].host.as_strided((5, 50), (50, 1))
    for slot in parts:
        slot.show((owner,), (whole.data_ptr(), whole.data_ptr() + whole.nbytes), checked=True)
    owner.grad = whole
    others = staged(staging)[-3:]
    assert not {id(slot) for slot in others} & {id(slot) for slot in parts}
    assert staged(staging)[-3:] == others
    for slot in others:
        staging.abandon(slot)
    assert not {id(slot) for slot in staged(staging)[-3:]} & {id(slot) for slot in parts}
    owner.grad = None
    for slot in staged(staging)[-3:]:
        staging.abandon(slot)
    assert staged(staging)[-3] in parts
