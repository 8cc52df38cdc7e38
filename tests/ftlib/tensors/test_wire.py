from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ftlib.core.tensors.dtypes import load, reason_against, store, wire_dtype
from ftlib.core.tensors.staging import finite

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), -float("nan"), 1.0, -1.0, 6e-8, 65504.0, -65504.0]
values = st.lists(st.one_of(st.sampled_from(SPECIAL), st.floats(width=16)), min_size=1, max_size=9)


def staged(tensor: torch.Tensor, op: str, scale: float = 1.0) -> torch.Tensor:
    view = torch.empty(tensor.shape, dtype=wire_dtype(tensor.dtype, op))
    store(view, tensor, op, scale)
    return view


@pytest.mark.parametrize("op", ["MIN", "MAX"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@settings(max_examples=30)
@given(rows=st.integers(1, 5).flatmap(lambda n: st.lists(values.map(lambda row: (row * 9)[:9]), min_size=n, max_size=n)))
def test_extremes_are_those_of_torch_whatever_the_order(op: str, dtype: torch.dtype, rows: list[list[float]]) -> None:
    tensors = [torch.tensor(row, dtype=dtype) for row in rows]
    pick = torch.minimum if op == "MIN" else torch.maximum
    keys = [staged(tensor, op) for tensor in tensors]
    assert not keys[0].is_floating_point()
    expected = tensors[0]
    for tensor in tensors[1:]:
        expected = pick(expected, tensor)
    results = []
    for order in (keys, keys[::-1]):
        total = order[0]
        for key in order[1:]:  # as integers, with no idea of nan
            total = pick(total, key)
        results.append(torch.empty_like(expected))
        load(results[-1], total)
    assert torch.equal(results[0].view(torch.uint8), results[1].view(torch.uint8))
    assert torch.equal(results[0].isnan(), expected.isnan())
    assert torch.equal(results[0].nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@settings(max_examples=40)
@given(row=values, op=st.sampled_from(["SUM", "PRODUCT", "MIN", "MAX"]))
def test_every_value_comes_back_as_it_was(dtype: torch.dtype, row: list[float], op: str) -> None:
    tensor = torch.tensor(row, dtype=dtype)
    back = torch.empty_like(tensor)
    load(back, staged(tensor, op))
    assert torch.equal(back.isnan(), tensor.isnan())
    back, tensor = back.nan_to_num(7.0), tensor.nan_to_num(7.0)
    assert torch.equal(back, tensor)
    assert torch.equal(torch.signbit(back), torch.signbit(tensor))


def test_half_precision_is_weighted_in_float32() -> None:
    heavy = staged(torch.tensor([60000.0], dtype=torch.float16), "SUM", 1000.0)
    assert heavy.item() == 6e7
    back = torch.empty(1, dtype=torch.float16)
    load(back, heavy, 1000.0)
    assert back.item() == 60000.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_inf_and_nan_are_found_wherever_they_are(dtype: torch.dtype) -> None:
    for size in (1, 7, 1000, 70_000):
        tensor = torch.full((size,), 0.5, dtype=dtype)
        assert finite(tensor)
        for value in (math.inf, -math.inf, math.nan):
            for place in (0, size // 2, size - 1):
                spoilt = tensor.clone()
                spoilt[place] = value
                assert not finite(spoilt)
    both = torch.tensor([math.inf, -math.inf], dtype=dtype)
    assert not finite(both)
    assert finite(torch.full((100_000,), torch.finfo(dtype).max, dtype=dtype)), "the sum overflows, the values do not"
    assert finite(torch.empty(0, dtype=dtype))
    assert finite(torch.empty(3, dtype=torch.int64))


def test_reasons_name_the_remedy() -> None:
    for dtype, op, mean, text in [
        (torch.complex64, "SUM", True, "view_as_real"),
        (torch.int32, "SUM", True, "use op='SUM'"),
        (torch.bool, "SUM", True, "floating-point"),
        (torch.bool, "SUM", False, "op='MAX'"),
        (torch.uint16, "SUM", False, "convert it to one of bfloat16, bool"),
        (torch.float8_e5m2, "SUM", True, "convert it to one of"),
    ]:
        assert text in reason_against(dtype, op, mean=mean)
    for dtype in (*FLOATS, torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
        for op in ("MIN", "MAX", "PRODUCT"):
            assert not reason_against(dtype, op, mean=False)
