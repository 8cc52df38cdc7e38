"""Values become bytes and tensors and are the same afterwards; what is refused is named, and what is hostile is an error."""

from __future__ import annotations

import contextlib
import pickle
import random
import sys
import tracemalloc
from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from ftlib.collective.frames import LONGEST, Incoming, Sort, outgoing
from ftlib.collective.values import Classes, Kind, decode, encode, encode_leaf, room_for
from ftlib.links.errors import Mismatch, Refused

from .kinds import Careful, Frozen, Slotted, leaves, same, tensor, values

PLAIN = Classes()
PICKLES = Classes(allow_pickle=True)
LIMIT = 1 << 24


class Colour(Enum):
    RED = 1


def passed(value: object, mine: Classes = PLAIN, theirs: Classes = PLAIN) -> Any:
    """``value`` after a journey: all bytes copied into the receiver's own memory."""
    out = outgoing(Sort.OBJECT, [], encode(value, mine))
    assert len(out.header) <= LONGEST
    frame = Incoming.of(out.header)
    room = frame.room(LIMIT)
    data = b"".join(out.payload)
    assert sum(map(len, room)) == len(data)
    for piece in room:
        piece[:], data = data[: len(piece)], data[len(piece) :]
    message = frame.message()
    return decode(message.tree, message.leaves, theirs)


@given(values)
@example({(1, "a", (None,)): [1j, b"", 2**64, -(2**63) - 1]})
@example([np.str_(""), np.bytes_(b""), np.str_("a")])
@example([Careful(given=2), Slotted("x", torch.ones(2)), Frozen(1, Frozen(2))])
def test_all_kinds_arrive_as_they_were(value: object) -> None:
    assert same(passed(value), value)


@given(st.lists(leaves, min_size=1, max_size=5), st.integers(0, 3))
def test_a_tree_that_fits_no_header_travels_in_front(tensors: list[Any], odd: int) -> None:
    value = [*tensors, "x" * (LONGEST + odd)]
    assert outgoing(Sort.OBJECT, [], encode(value, PLAIN)).sealed, "objects are sealed"
    got = passed(value)
    assert same(got, value)
    for leaf in got[:-1]:
        leaf[...] = leaf.clone() if isinstance(leaf, torch.Tensor) else leaf.copy()  # it can be written to


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_a_single_element_may_have_any_stride(dtype: torch.dtype) -> None:
    rows = torch.arange(12).to(dtype).view(3, 4)
    assert [leaf.tolist() for leaf in passed([rows[1:2, 0], rows[2:, 3:]])] == [[4], [[11]]]


def test_the_memory_is_the_programs_own() -> None:
    """Nothing is copied: what is sent is the memory of the tensor, at the time of sending."""
    value = torch.zeros(10)
    out = outgoing(Sort.OBJECT, [], encode({"a": value}, PLAIN))
    value[3] = 7
    assert np.frombuffer(out.payload[0], np.float32)[3] == 7


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [1, {2}]}, r"value\['a'\]\[1\]: a builtins.set is sent by pickle only"),
        ({"w": torch.zeros(4, 4).t()}, r"value\['w'\]: the tensor is not contiguous: pass tensor.contiguous"),
        ([np.zeros((3, 3))[:, 0]], r"value\[0\]: the array is not contiguous"),
        ([torch.eye(3).to_sparse()], r"value\[0\]: a tensor of torch.float32, torch.sparse_coo"),
        ([torch.empty(3, device="meta")], r"value\[0\]: .* on meta"),
        ([np.array([object()])], r"value\[0\]: an array of object cannot be sent"),
        ([np.ma.masked_array([1.0], [True])], r"value\[0\]: a masked array cannot be sent"),
        (Frozen(1, Colour.RED), r"value.inside: a tests.collective.test_values.Colour is sent by pickle only"),
        (defaultdict(int), r"value: a collections.defaultdict is sent by pickle only"),
    ],
)
def test_what_cannot_be_sent_is_named_with_its_path(value: object, says: str) -> None:
    with pytest.raises(Refused, match=says) as refused:
        encode(value, PLAIN)
    assert isinstance(refused.value, ValueError)


def test_a_value_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(Refused, match="may contain itself"):
        encode(circle, PLAIN)
    tower: Any = ()
    for _ in range(200):
        tower = (tower,)
    with pytest.raises(Refused, match="nested deeper than"):
        encode(tower, PLAIN)


def test_anything_else_goes_by_pickle_if_both_sides_say_so() -> None:
    value = {"a": {1, 2}, "b": [Colour.RED, torch.ones(2)]}
    assert encode(value, PICKLES).pickled
    assert passed(value, PICKLES, PICKLES)["a"] == {1, 2}
    with pytest.raises(Mismatch, match="allow_pickle=False refuses"):
        passed(value, PICKLES, PLAIN)
    with pytest.raises(Refused, match=r"value\['f'\]: a function that pickle refuses"):
        encode({"f": lambda: None}, PICKLES)


def test_no_class_is_imported_for_a_peer() -> None:
    """A tree may name any dataclass; only one that is here already is built, and nothing that is no dataclass."""

    def named(name: str, fields: dict[str, Any]) -> bytes:
        return bytes(msgpack.packb(msgpack.ExtType(Kind.DATACLASS, msgpack.packb([name, fields]))))

    unused = "ftlib.collective.nowhere" if "antigravity" in sys.modules else "antigravity"
    for name in (
        f"{unused}:Thing",
        "os:system",
        "subprocess:Popen",
        "tests.collective.kinds:Frozen.__init__",
        "tests:x.y",
        ":",
        "",
    ):
        with pytest.raises(Mismatch, match="no dataclass"):
            decode(named(name, {}), [], PLAIN)
    assert unused not in sys.modules
    with pytest.raises(Mismatch, match="run the same code at both"):
        decode(named("tests.collective.kinds:Frozen", {"number": 1, "other": 2}), [], PLAIN)


def test_a_class_that_cannot_be_found_by_name_is_registered() -> None:
    @dataclass
    class Local:
        x: int

    with pytest.raises(Mismatch, match="register"):
        passed(Local(3))
    mine, theirs = Classes(), Classes()
    mine.register(Local, "local")
    with pytest.raises(Mismatch, match="no dataclass 'local' here"):
        passed(Local(3), mine, theirs)
    theirs.register(Local, "local")
    assert passed(Local(3), mine, theirs) == Local(3)
    with pytest.raises(Refused, match="no dataclass"):
        mine.register(int)


def test_room_is_not_made_before_it_is_counted() -> None:
    for shapes in (
        [[0, "float32", 0, 2**40]],
        [[1, "<f8", 0, 2**30, 2**30]],
        [[0, "uint8", 0, LIMIT + 1]],
        [[1, "<U99999999", 0, 9]],
    ):
        tracemalloc.start()
        try:
            with pytest.raises(Mismatch, match="max_bytes"):
                room_for(shapes, LIMIT)
            assert tracemalloc.get_traced_memory()[1] < 1 << 16
        finally:
            tracemalloc.stop()
    hostile: list[Any] = [None, 3, [3], [[]], [[0]], [[0, "float32"]], [[0, "float32", 0, -1]], [[0, "quint8", 0, 1]]]
    hostile += [[[1, "O", 0, 1]], [[1, "f8,f8", 0, 1]], [[2, "float32", 0, 1]], [[0, [], 0, 1]], [[0, "float32", 0, True]]]
    hostile += [[[0, "float32", 0, 0, 2**62]]]
    for shapes in hostile:
        with pytest.raises(Mismatch):
            room_for(shapes, LIMIT)


def mutations(rounds: int, seed: int) -> None:
    """Headers with bytes changed, cut, doubled: each is read, or is a Mismatch, and memory stays within the bound."""
    dice = random.Random(seed)
    samples = [
        {"a": tensor("bfloat16", [3, 2], 1), "b": (1, 2.0, None, b"xyz", 2**70), "c": [np.arange(4), 1j, "text"]},
        [Frozen(3, Slotted("n", tensor("bool", [], 2))), {1: {(): True}}],
        ["y" * LONGEST, tensor("float64", [5], 3)],
        {"p": {1, 2, 3}},
    ]
    messages = [encode(sample, PICKLES) for sample in samples]
    messages.append(encode_leaf(torch.ones(3)))
    frames = [outgoing(Sort.OBJECT, [1, "x"], message) for message in messages]
    for _ in range(rounds):
        out = dice.choice(frames)
        data = bytearray(out.header)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(data)) if data else 0
            match dice.randrange(4):
                case 0 if data:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 8)]
                case 2:
                    data[at:at] = data[at : at + dice.randint(1, 8)]
                case _:
                    data[at:at] = dice.randbytes(dice.randint(1, 4))
        try:
            frame = Incoming.of(bytes(data))
            room = frame.room(LIMIT)
            assert sum(map(len, room)) <= LIMIT
            source = b"".join(out.payload)
            for piece in room:
                piece[:] = (source + bytes(len(piece)))[: len(piece)]
            message = frame.message()
            decode(message.tree, message.leaves, PLAIN)
        except Mismatch:
            pass


def test_mutated_headers_are_typed_errors() -> None:
    mutations(3_000, 1)


@pytest.mark.soak
def test_two_hundred_thousand_mutated_headers() -> None:
    mutations(200_000, 2)


@given(st.binary(max_size=64))
def test_noise_is_a_typed_error(noise: bytes) -> None:
    for read in (Incoming.of, lambda data: decode(data, [], PLAIN)):
        with contextlib.suppress(Mismatch):
            read(noise)


def test_a_pickle_is_never_loaded_unasked() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it was loaded",))

    tree = msgpack.packb(msgpack.ExtType(Kind.PICKLE, pickle.dumps(Trap())))
    with pytest.raises(Mismatch, match="pickle"):
        decode(tree, [], PLAIN)
