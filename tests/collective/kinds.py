"""Values of every kind that can be sent, for hypothesis; and whether two are the same, bit for bit."""

from __future__ import annotations

import dataclasses
import struct
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from ftlib.collective.values import _DTYPES

DTYPES = sorted(set(_DTYPES) - {"complex32"})  # torch warns wherever it meets that one
ARRAYS = ["?", "i1", "<i4", ">i8", "<u2", "<f2", "<f4", ">f8", "<c8", "<c16", "<U3", "S4", "<M8[ns]", "<m8[s]"]


@dataclass(frozen=True)
class Frozen:
    number: int
    inside: Any = None


@dataclass(slots=True)
class Slotted:
    name: str
    tensor: Any


@dataclass
class Careful:
    """Its ``__init__`` takes another list of arguments than it has fields, and must not run on arrival."""

    total: int = field(init=False)
    given: dataclasses.InitVar[int] = 0

    def __post_init__(self, given: int) -> None:
        self.total = 2 * given


def tensor(name: str, shape: list[int], seed: int) -> torch.Tensor:
    dtype = _DTYPES[name]
    size = dtype.itemsize * int(np.prod(shape))
    raw = torch.from_numpy(np.random.default_rng(seed).integers(0, 2 if dtype is torch.bool else 256, size, np.uint8))
    return raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def array(name: str, shape: list[int], seed: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(name)
    raw = np.random.default_rng(seed).integers(0, 2 if name == "?" else 100, dtype.itemsize * int(np.prod(shape)), np.uint8)
    if dtype.kind == "U":
        raw = np.zeros_like(raw)
    return raw.view(dtype).reshape(shape) if raw.size else np.empty(shape, dtype)


shapes = st.lists(st.integers(0, 3), max_size=3)
leaves = st.one_of(
    st.builds(tensor, st.sampled_from(DTYPES), shapes, st.integers(0, 9)),
    st.builds(array, st.sampled_from(ARRAYS), shapes, st.integers(0, 9)),
)
text = st.text(max_size=8) | st.just("\ud800")
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(),
    text,
    st.binary(max_size=8),
    st.sampled_from([np.float32(1.5), np.int64(-3), np.bool_(True), np.complex64(1j), np.float64("nan")]),
)
keys = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), text, st.binary(max_size=4)),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.builds(Frozen, st.integers(), inner),
        st.builds(Slotted, text, inner),
        st.builds(lambda value: Careful(given=value), st.integers(0, 9)),
    )


values = st.recursive(scalars | leaves, _nested, max_leaves=12)


def same(left: Any, right: Any) -> bool:
    """Whether both are of one kind and equal, bit for bit."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and _bytes(left) == _bytes(right)
    if isinstance(left, (np.ndarray, np.generic)):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and all(map(same, left.values(), right.values()))
    if dataclasses.is_dataclass(left):
        return all(same(getattr(left, each.name), getattr(right, each.name)) for each in dataclasses.fields(left))
    if isinstance(left, (float, complex)):
        return [_bits(left.real), _bits(left.imag)] == [_bits(right.real), _bits(right.imag)]
    return bool(left == right)


def _bits(value: float) -> bytes:
    return b"nan" if value != value else struct.pack("<d", value)


def _bytes(value: torch.Tensor) -> bytes:
    return value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
