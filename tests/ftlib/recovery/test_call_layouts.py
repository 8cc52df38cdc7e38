from __future__ import annotations

from typing import Any

import msgpack
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ftlib.core.tensors.layout import TensorSpec, lay_out
from ftlib.recovery.layout import call_layouts as layouts

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8, torch.uint8]
specs = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 40), max_size=3).map(tuple)), max_size=6)


@given(specs, st.sampled_from(["SUM", "MIN", "MAX", "PRODUCT"]), st.integers(1, 10_000))
def test_layouts_survive(specs: list[TensorSpec], op: str, room: int) -> None:
    layout = lay_out("allreduce", specs, op, room)
    found = layouts.decode(layouts.encode(layout))
    assert found == layout
    assert found.nbytes == layout.nbytes


def packed() -> Any:
    """A layout as plain values: two buckets, of one whole and of pieces."""
    return msgpack.unpackb(layouts.encode(lay_out("average", [(torch.float32, (3, 4)), (torch.float32, (50,))], "SUM", 80)))


def changed(*path: int, value: Any, name: str = "") -> bytes:
    """``name``: of a compression."""
    whole = inner = packed()
    whole[3] = name
    for index in path[:-1]:
        inner = inner[index]
    inner[path[-1]] = value
    return bytes(msgpack.packb(whole))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb({}),
        msgpack.packb([b"x" * 16, "kind", "text"]),
        changed(0, value=b"short"),
        changed(1, value=7),
        changed(2, value=7),
        changed(3, value=[]),
        changed(3, value="x" * 1000),
        changed(4, value=[]),
        changed(4, 0, value=[]),
        changed(4, 0, 0, value="object"),
        changed(4, 0, 1, value=2**40),
        changed(4, 0, 1, value=-1),
        changed(4, 0, 1, value=True),
        changed(4, 0, 2, value="XOR"),
        changed(4, 0, 3, value="pieces"),
        changed(4, 0, 3, 0, value=[0, 0, 12, 0]),
        changed(4, 0, 3, 0, 0, value=-1),
        changed(4, 0, 3, 0, 2, value=0),
        changed(4, 0, 3, 0, 3, value=1),
        changed(4, 0, 3, 0, 4, value=[3, 5]),
        changed(4, 0, 3, 0, 4, value=[[3], 4]),
        changed(4, 0, 3, 0, 4, value=[-3, -4]),
        changed(4, 0, 3, 0, 4, value=[3.0, 4]),
        changed(4, 0, 3, value=[[0, 0, 12, 0, [3, 4]], [1, 0, 0, 12, None]]),
        changed(4, 0, 5, value=1),
        changed(4, 0, 5, value=True),  # how, is not said
        changed(4, 0, value=["float64", 12, "SUM", [[0, 0, 12, 0, [3, 4]]], "", True], name="int8"),
        msgpack.packb([b"x" * 16, "", "", "", [["float32", 2**50, "SUM", [[0, 0, 2**50, 0, None]], "", False]]]),
    ],
)
def test_what_is_no_layout_is_refused(data: bytes) -> None:
    layouts.decode(bytes(msgpack.packb(packed())))
    with pytest.raises(ValueError, match="no layout"):
        layouts.decode(data)
