"""What a spare adds to a step: nothing, whatever the operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from ftlib.torchft.replica.averages import Averages, Opens
from ftlib.torchft.replica.steps import Reduces, Step

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8]
OPERATIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "MEAN": torch.add,  # its weight is 0
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def spare() -> Step:
    return Step(cast("Reduces", None), Averages(cast("Opens", None), 1), counts=False, sound=lambda: True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPERATIONS)
def test_a_spare_changes_no_result(op: str, dtype: torch.dtype) -> None:
    mine, others = torch.full((5,), 3).to(dtype), torch.tensor([0, 1, 2, 3, 120]).to(dtype)
    if dtype.is_floating_point:
        others[0] = torch.finfo(dtype).min
    spare().add(mine, op, quantized=False)
    assert torch.equal(OPERATIONS[op](others, mine), others)


@pytest.mark.parametrize(
    ("op", "reduce"), [("PRODUCT", torch.logical_and), ("MIN", torch.logical_and), ("MAX", torch.logical_or)]
)
def test_nor_that_of_truth_values(op: str, reduce: Any) -> None:
    for mine in (torch.tensor([True, True]), torch.tensor([False, False])):
        spare().add(mine, op, quantized=False)
        others = torch.tensor([True, False])
        assert torch.equal(reduce(others, mine), others)
