from __future__ import annotations

import functools
import random
import re
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from ftlib.common.memory import huge
from ftlib.recovery.layout.flat_state import FlatState, TensorRange
from tests.harness.basics import TIMEOUT
from tests.harness.company import at_once


def raw(tensor: torch.Tensor) -> bytes:
    row = tensor.detach().contiguous()
    row = row.as_strided((row.numel(),), (1,))  # whatever the stride of a single element
    return bytes(row.view(torch.uint8).numpy()) if row.numel() else b""


def some() -> list[torch.Tensor]:
    """Of all kinds: strided, of other dtypes, without elements, without dimensions."""
    return [
        torch.randn(7, 3),
        torch.zeros(0, 4),
        torch.tensor(1.5, dtype=torch.float64),
        torch.randn(5, 6).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(1, 4, 6).transpose(1, 2),
        torch.randn(9).to(torch.bfloat16),
        torch.rand(11) > 0.5,
        torch.randn(4, 8)[:, ::2],
        torch.randn(9, 2)[:, 0],
        torch.randn(1, 2)[:, 0],
        torch.zeros(0),
    ]


def flat(tensors: list[torch.Tensor]) -> FlatState:
    return FlatState(tensors, [f"t[{index}]" for index in range(len(tensors))])


def test_any_range_of_any_tensors_is_read() -> None:
    tensors = some()
    row = flat(tensors)
    whole = b"".join(map(raw, tensors))
    assert row.nbytes == len(whole)
    chance = random.Random(1)
    for _ in range(200):
        start, stop = sorted((chance.randint(0, row.nbytes), chance.randint(0, row.nbytes)))
        into = torch.zeros(stop - start, dtype=torch.uint8)
        row.copy_out(start, stop, into)
        assert bytes(into.numpy()) == whole[start:stop]


def test_any_range_of_any_tensors_is_written() -> None:
    tensors = some()
    row = flat(tensors)
    whole = bytearray(b"".join(map(raw, tensors)))
    chance = random.Random(2)
    for _ in range(200):
        start, stop = sorted((chance.randint(0, row.nbytes), chance.randint(0, row.nbytes)))
        data = chance.randbytes(stop - start).replace(b"\x02", b"\x01")
        whole[start:stop] = data
        row.copy_in(start, torch.frombuffer(bytearray(data) or bytearray(1), dtype=torch.uint8)[: stop - start])
        assert b"".join(map(raw, tensors)) == whole


def test_threads_that_write_parts_of_one_row_keep_each_others() -> None:
    """Shards end anywhere within a row, and several arrive at a time."""
    tensor = torch.zeros(3, 200_000)[:, ::2]
    row = flat([tensor])
    cuts = [row.nbytes * index // 4 for index in range(5)]
    for value in range(1, 11):
        data, together = torch.full((row.nbytes // 4,), float(value)).view(torch.uint8), threading.Barrier(4)

        def write(start: int, stop: int, data: torch.Tensor = data, together: threading.Barrier = together) -> None:
            together.wait(TIMEOUT)
            row.copy_in(start, data[start:stop])

        at_once(*[functools.partial(write, *each) for each in pairwise(cuts)])
        assert (tensor == value).all()


def test_pieces_leave_out_the_empty() -> None:
    row = flat([torch.zeros(0), torch.zeros(4), torch.zeros(0), torch.zeros(()), torch.zeros(2), torch.zeros(0)])
    assert list(row.pieces(0, 28)) == [TensorRange(1, 0, 16), TensorRange(3, 0, 4), TensorRange(4, 0, 8)]
    assert list(row.pieces(15, 21)) == [TensorRange(1, 15, 16), TensorRange(3, 0, 4), TensorRange(4, 0, 1)]
    assert list(row.pieces(16, 16)) == list(row.pieces(28, 28)) == list(flat([]).pieces(0, 0)) == []
    for start, stop in [(-1, 3), (4, 3), (0, 29)]:
        with pytest.raises(ValueError, match="of 28"):
            list(row.pieces(start, stop))


def test_views_are_the_memory_itself() -> None:
    tensors = [torch.nn.Parameter(torch.zeros(4)), torch.zeros(3, dtype=torch.bfloat16)]
    [first, second] = flat(list(tensors)).views(4, 20)  # type: ignore[misc]
    first[:4] = b"\x00\x00\x80\x3f"
    second[2:4] = b"\x80\x3f"
    assert tensors[0].tolist() == [0, 1, 0, 0]
    assert tensors[1][:2].tolist() == [0, 1]
    assert flat([torch.zeros(4), torch.zeros(2, 2).t()]).views(0, 20) is None
    assert flat([torch.zeros(4), torch.zeros(2, 2).t()]).views(0, 16) is not None
    assert flat([torch.zeros(4), torch.zeros(4, device="meta")]).views(0, 32) is None


def test_a_parameter_is_read_where_its_data_is_now() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    row = flat([parameter])
    parameter.data = torch.ones(4)
    into = torch.zeros(16, dtype=torch.uint8)
    row.copy_out(0, 16, into)
    assert into.view(torch.float32).tolist() == [1, 1, 1, 1]


def test_writing_counts_as_a_change_but_asks_no_gradients() -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    before = parameter._version
    flat([parameter]).copy_in(8, torch.zeros(4, dtype=torch.uint8))
    assert parameter._version > before
    assert parameter.is_leaf and parameter.grad_fn is None


@pytest.mark.parametrize("into", [torch.zeros(3, dtype=torch.uint8), torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8)])
def test_a_buffer_that_does_not_fit_is_refused(into: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="uint8"):
        flat([torch.zeros(4)]).copy_out(0, 4, into)


@pytest.mark.parametrize("data", [torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8)])
def test_what_is_not_bytes_is_not_written(data: torch.Tensor) -> None:
    """A copy would convert the numbers."""
    tensor = torch.ones(4)
    with pytest.raises(ValueError, match="uint8"):
        flat([tensor]).copy_in(0, data)
    assert bool(tensor.all())


def test_every_tensor_has_a_path() -> None:
    with pytest.raises(ValueError, match="paths"):
        FlatState([torch.zeros(1)], [])


def mapped() -> int:
    """Kilobytes that this process has mapped."""
    return int(re.search(r"VmSize:\s+(\d+)", Path("/proc/self/status").read_text())[1])  # type: ignore[index]


def test_room_is_zero_aligned_and_given_back() -> None:
    before = mapped()
    room = huge((256 << 20) + 5)
    assert room.numel() == (256 << 20) + 5
    assert room.data_ptr() % (2 << 20) == 0
    assert not room[:4096].any() and not room[-4096:].any()
    room[-1] = 7
    part = room[5:]
    del room
    assert mapped() > before + (200 << 10), "a part holds it"
    assert part[-1] == 7
    del part
    assert mapped() < before + (100 << 10)
    assert huge(0).numel() == 0
