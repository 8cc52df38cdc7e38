from __future__ import annotations

import collections
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ftlib import ConfigError, FTLib
from ftlib.common.host_copies import host_copies
from ftlib.state import codec
from ftlib.state.codec import decode, encode, flatten, restore, snapshot
from ftlib.state.digests import difference, digests
from ftlib.state.registry import Registered
from ftlib.state.snapshot import Backup

leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(trees)
def test_trees_survive(tree: object) -> None:
    assert decode(snapshot(tree), 1 << 20) == tree


def test_a_numpy_scalar_arrives_as_a_number() -> None:
    """As a program may compute the best loss so far."""
    tree = {"best": np.float64(0.1), "half": np.float32(0.1), "steps": np.int64(7), "done": np.bool_(1)}
    found = decode(snapshot(tree), 1 << 20)
    assert found == {"best": 0.1, "half": float(np.float32(0.1)), "steps": 7, "done": True}
    assert [type(value) for value in found.values()] == [float, float, int, bool]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.int64, torch.complex64]
)
def test_tensors_survive_bit_for_bit(dtype: torch.dtype) -> None:
    tree = {
        "a": torch.randn(5, 7).to(dtype),
        "b": [torch.zeros(0, 3, dtype=dtype), torch.ones((), dtype=dtype)],
        3: torch.randn(4, 6).to(dtype).t(),
    }
    found = decode(snapshot(tree), 1 << 20)
    for mine, theirs in [
        (tree["a"], found["a"]),
        (tree["b"][0], found["b"][0]),
        (tree["b"][1], found["b"][1]),
        (tree[3], found[3]),
    ]:
        assert mine.dtype is theirs.dtype
        assert mine.shape == theirs.shape
        assert torch.equal(mine, theirs)


def test_tensors_that_torch_turns_only_when_they_are_read_survive() -> None:
    tensor = torch.randn(4, 3, dtype=torch.complex64)
    tree = {"conj": tensor.conj(), "neg": tensor.conj().imag, "both": tensor.t().conj()}
    found = decode(snapshot(tree))
    assert all(torch.equal(found[name], value) for name, value in tree.items())  # type: ignore[index]
    assert difference(digests(tree), digests(found)) == ""


def test_a_single_element_of_a_strided_tensor_survives() -> None:
    """It is contiguous to torch, whatever its stride."""
    tree = {"row": torch.arange(10.0)[::5][:1], "matrix": torch.randn(4, 6)[::2, ::3][:1, :1]}
    found = decode(snapshot(tree))
    assert all(torch.equal(found[name], value) for name, value in tree.items())  # type: ignore[index]
    assert difference(digests(tree), digests(found)) == ""


@st.composite
def laid_out(draw: st.DrawFn) -> torch.Tensor:
    """A tensor with its dimensions in any order, perhaps with gaps, or expanded."""
    shape = draw(st.lists(st.integers(0, 4), max_size=5))
    kind = draw(st.sampled_from([torch.float32, torch.int8]))
    tensor = torch.arange(math.prod(shape)).to(kind).view(shape).permute(draw(st.permutations(range(len(shape)))))
    for dim in range(len(shape)):
        match draw(st.sampled_from(["all", "all", "all", "some", "one"])):
            case "some":
                tensor = tensor[(slice(None),) * dim + (slice(None, None, 2),)]
            case "one" if tensor.shape[dim]:
                tensor = tensor.narrow(dim, 0, 1).expand([3 if at == dim else size for at, size in enumerate(tensor.shape)])
    return tensor


def strides(tensor: torch.Tensor) -> list[int]:
    """Those that say where elements are."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and tensor.numel()]


def is_dense(tensor: torch.Tensor) -> bool:
    places = torch.arange(1 << 12).as_strided(tensor.shape, tensor.stride()).flatten().tolist()
    return sorted(places) == list(range(tensor.numel()))


@given(st.lists(laid_out(), max_size=3))
def test_strides_survive_where_there_are_no_gaps(tensors: list[torch.Tensor]) -> None:
    for tensor in tensors:
        backup = Backup()
        kept = backup.copy({"it": tensor})["it"]
        [copied] = host_copies([tensor])
        for found in (decode(snapshot([tensor]))[0], kept, copied):  # type: ignore[index]
            assert torch.equal(found, tensor) and found.dtype is tensor.dtype
            assert is_dense(found) and (strides(found) == strides(tensor) or not is_dense(tensor))
        assert digests(tensor) == digests(tensor.clone(memory_format=torch.contiguous_format))
    assert difference(digests(tensors), digests(decode(snapshot(tensors)))) == ""


def test_contiguous_tensors_are_written_as_ever() -> None:
    tree = {"a": torch.ones(2, 3), "column": torch.ones(3, 2)[:, :1], "row": torch.ones(4, 1).t()}
    assert flatten(tree)[0] == [
        "D",
        [["a", ["T", "float32", [2, 3]]], ["column", ["T", "float32", [3, 1]]], ["row", ["T", "float32", [1, 4]]]],
    ]
    turned = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert flatten(turned)[0] == ["T", "float32", [2, 3, 4, 5], [0, 2, 3, 1]]


@pytest.mark.parametrize(
    "rest", [[[0]], [[0, 0]], [[0, 2]], [[-1, 0]], [[0, 1, 2]], [[False, True]], [["0", 1]], [[0, None]], [3], [[1, 0], []]]
)
def test_an_order_of_dimensions_that_is_none_is_refused(rest: list[object]) -> None:
    with pytest.raises(ValueError, match="the wrong shape"):
        restore(["T", "float32", [2, 3], *rest], 1 << 20)


def test_names_of_files_survive_though_they_are_not_unicode() -> None:
    name = os.fsdecode(b"caf\xe9.bin")
    tree = {"newest": name, name: [1]}
    assert decode(snapshot(tree)) == tree
    assert difference(digests(tree), digests({**tree, "newest": "other"}))


def test_what_no_reader_would_accept_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "HEADER_LIMIT", 1000)
    assert decode(snapshot({"x": bytes(900)})) == {"x": bytes(900)}
    text = r"what is in no tensor takes \d+ bytes, and 1000 bytes can be transferred; keep large values in tensors"
    with pytest.raises(ConfigError, match=text):
        snapshot({"x": bytes(1000)})
    with FTLib.init(framework="memory", config={}, agent="thread") as ft, pytest.raises(ConfigError, match=text):
        ft.register_state(state_dict=lambda: {"x": bytes(1000)}, load_state_dict=lambda _: None)


def test_an_optimizer_goes_on_where_the_other_was() -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.arange(12.0).view(3, 4)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    one, two = make(), make()
    for _ in range(3):
        step(*one)
    Registered({"model": two[0], "optimizer": two[1]}).load(
        decode(snapshot(Registered({"model": one[0], "optimizer": one[1]}).tree(3)), 1 << 20)
    )
    step(*one)
    step(*two)
    assert all(torch.equal(a, b) for a, b in zip(one[0].state_dict().values(), two[0].state_dict().values(), strict=True))


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        ({"a": [1, {"b": object()}]}, r"state\['a'\]\[1\]\['b'\]: a value of type object"),
        ({"a": {(1, 2): 3}}, r"state\['a'\]: a key of type tuple"),
        ([2**64], r"state\[0\]: the integer"),
        ({"s": torch.eye(3).to_sparse()}, r"state\['s'\]: a tensor"),
        (lambda: 0, "state: a value of type function"),
        ({"a": np.ones(2)}, r"state\['a'\]: a value of type ndarray"),
        ({"a": {2**64: 1}}, r"state\['a'\]: the integer"),
        ({"a": torch.ones(2, device="meta")}, r"state\['a'\]: a tensor of the meta device cannot be transferred"),
        ({"a": FakeTensorMode().from_tensor(torch.ones(2))}, r"state\['a'\]: a tensor of class FakeTensor"),
        ({"a": np.datetime64("2026-01-01")}, r"state\['a'\]: a value of type date"),
    ],
)
def test_what_cannot_travel_is_named(tree: object, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        snapshot(tree)


def test_damage_and_excess_are_refused() -> None:
    data = bytearray(snapshot(collections.OrderedDict(weights=torch.ones(100))))
    assert len(list(encode({"x": torch.ones(1 << 20)}))) == 7
    for position in (0, 20, len(data) - 40, len(data) - 1):
        broken = bytearray(data)
        broken[position] ^= 1
        with pytest.raises((ValueError, EOFError)):
            decode(bytes(broken), 1 << 20)
    with pytest.raises(EOFError):
        decode(bytes(data[:-1]), 1 << 20)
    with pytest.raises(ValueError, match="larger"):
        decode(snapshot({"x": torch.ones(1000)}), 2000)
