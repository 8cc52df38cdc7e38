from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib.core.tensors.dtypes import _AS_THEY_ARE, _WIDER, wire_dtype
from ftlib.core.tensors.trailer import CARRIERS, NEUTRAL, SLOT_BYTES, Flag, RankRecord, Trailer, TrailerCodec

REDUCE = {"SUM": torch.add, "MAX": torch.maximum, "MIN": torch.minimum, "PRODUCT": torch.mul}
slots = st.tuples(
    st.floats(0, 1e300), st.integers(0, 2**32 - 1), st.integers(0, 7).map(Flag), st.binary(min_size=4, max_size=4)
).map(lambda fields: RankRecord(*fields))


@pytest.mark.parametrize("op", sorted(NEUTRAL))
@pytest.mark.parametrize("dtype", sorted(CARRIERS, key=str), ids=str)
@given(said=st.lists(slots, min_size=1, max_size=5))
def test_every_byte_survives_every_dtype_and_operation(dtype: torch.dtype, op: str, said: list[RankRecord]) -> None:
    regions = []
    for rank, slot in enumerate(said):
        region = torch.empty(SLOT_BYTES * len(said), dtype=dtype)
        TrailerCodec(rank, len(said)).write(region.numpy(), slot, op)
        regions.append(region)
    total = regions[0]
    for region in regions[1:]:
        total = REDUCE[op](total, region)
    codec = TrailerCodec(0, len(said))
    assert codec.read(total.numpy()).slots == tuple(said)
    assert codec.read(total.numpy()) is codec.read(total.numpy())


def test_it_may_ride_on_whatever_travels() -> None:
    """int8 is the only dtype of the wire that cannot hold a byte."""
    travels = {wire_dtype(dtype, op) for dtype in (*_WIDER, *_AS_THEY_ARE) for op in NEUTRAL}
    assert travels - {torch.int8} == CARRIERS


def test_sums_and_flags_are_those_of_all_ranks() -> None:
    check = b"abcd"
    plain, asks = RankRecord(0.1, 1, Flag(0), check), RankRecord(0.2, 2, Flag.FREEZE, check)
    leaves = RankRecord(0.3, 3, Flag.LEAVING, check)
    assert not Trailer.of((plain, plain)).freeze
    assert Trailer.of((plain, asks)).freeze
    found = Trailer.of((plain, asks, leaves))
    assert found.leaving == (2,)
    assert found.weight == (0.1 + 0.2) + 0.3
    assert Trailer.of((plain, leaves)).freeze


@pytest.mark.parametrize("also", [Flag.LATE, Flag.DECLINES])
def test_who_takes_part_with_nothing_may_have_the_state(also: Flag) -> None:
    record = RankRecord(0.0, 0, Flag.FOLLOWING, b"1234")
    assert record.lacks_state
    assert not record._replace(flags=Flag.FOLLOWING | also | Flag.LEAVING).lacks_state
    assert not record._replace(flags=0).lacks_state
