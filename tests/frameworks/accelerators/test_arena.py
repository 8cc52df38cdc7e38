"""Memory of a GPU that children share, over a library that is none: what is lent, when it is used again, and what may fail."""

from __future__ import annotations

import gc
import random
import subprocess
import sys

import pytest
import torch

from ftlib.frameworks.accelerators.isolated import cudart
from ftlib.frameworks.accelerators.isolated.arena import CudaArena, Lent, streams
from ftlib.frameworks.accelerators.isolated.cudart import CudaError, Cudart
from ftlib.frameworks.accelerators.isolated.memory import HostMemory
from ftlib.frameworks.accelerators.isolated.records import Block
from tests.frameworks.accelerators.fake_cudart import FakeCudart, FakeStream, on_cpu
from tests.harness.gpu import PLACE

MIB = 1 << 20


@pytest.fixture
def library() -> FakeCudart:
    return FakeCudart()


@pytest.fixture
def stream() -> FakeStream:
    return FakeStream()


@pytest.fixture
def arena(library: FakeCudart, stream: FakeStream) -> CudaArena:
    return CudaArena(lambda: Cudart(library), on_cpu, stream.marking, lambda: None)


def address(row: torch.Tensor) -> int:
    return row.data_ptr()


def test_rows_of_one_block(arena: CudaArena, library: FakeCudart) -> None:
    rows = [
        arena.row("cuda:0", count, dtype) for count, dtype in ((5, torch.bfloat16), (1000, torch.float32), (1, torch.int64))
    ]
    for number, row in enumerate(rows):
        row.fill_(number)
    assert [row.unique().tolist() for row in rows] == [[0], [1], [2]], "they lie beside each other"
    assert all(address(row) % 512 == 0 for row in rows)
    assert library.calls.count("cudaMalloc") == library.calls.count("cudaIpcGetMemHandle") == 1
    spans = [arena.find(row) for row in rows]
    assert all(span is not None and span.number == 1 and span.fd == -1 and span.owner.alive for span in spans)
    assert [span.offset for span in spans if span] == [0, 512, 512 + 4096]
    record = spans[0] and spans[0].record
    assert isinstance(record, Block) and (record.number, record.device, record.nbytes) == (1, 0, 64 * MIB)
    assert len(record.handle) == 64
    inside = arena.find(rows[1][10:20])
    assert inside is not None and inside.offset == 512 + 40
    assert arena.find(torch.ones(10)) is None


def test_a_large_row_has_a_block_of_its_own_that_ends_with_a_page(arena: CudaArena) -> None:
    row = arena.row("cuda:0", 100 * MIB + 5, torch.uint8)
    assert row.nbytes == 100 * MIB + 5
    assert arena.nbytes == 102 * MIB
    span = arena.find(row)
    assert span is not None and span.offset == 0


def test_each_device_has_its_own_blocks(arena: CudaArena, library: FakeCudart) -> None:
    rows = [arena.row(place, 10, torch.float32) for place in ("cuda:0", "cuda:3", "cuda:0", "cuda")]
    assert [library.blocks[key][0] for key in library.blocks] == [0, 3]
    assert library.device == 0, "the current one of the thread is as it was"
    found = [arena.find(row) for row in rows]
    assert [span and span.number for span in found] == [1, 2, 1, 1]


def test_a_freed_row_is_used_again_after_what_was_enqueued_on_it(arena: CudaArena, stream: FakeStream) -> None:
    row = arena.row("cuda:0", MIB, torch.float32)
    first = address(row)
    view = row[5:10]
    del row
    assert not stream.marked, "a view of it is left"
    del view
    assert stream.marked == 1
    second = arena.row("cuda:0", MIB, torch.float32)
    assert address(second) != first, "the device may still work on it"
    stream.reach()
    third = arena.row("cuda:0", MIB, torch.float32)
    assert address(third) == first


def test_holes_become_one_again(arena: CudaArena, stream: FakeStream) -> None:
    """Whatever the order: all is used again, and no row lies in another."""
    chance, rows = random.Random(5), dict[int, torch.Tensor]()
    for step in range(600):
        if rows and chance.random() < 0.48:
            del rows[chance.choice(list(rows))]
            if chance.random() < 0.5:
                stream.reach()
        else:
            row = arena.row("cuda:0", chance.choice((3, 700, 40_000, 1_000_000)), torch.int32)
            row.fill_(step)
            rows[step] = row
        if step % 50 == 0:
            assert all(bool((row == number).all()) for number, row in rows.items())
    most = arena.nbytes
    del row
    rows.clear()
    stream.reach()
    big = [arena.row("cuda:0", 64 * MIB, torch.uint8) for _ in range(most // (64 * MIB))]
    assert arena.nbytes == most, "each block is in one piece again"
    del big


def test_a_row_whose_device_has_failed_is_never_used_again(arena: CudaArena, stream: FakeStream) -> None:
    row = arena.row("cuda:0", 10, torch.float32)
    first = address(row)
    stream.broken = True
    del row
    stream.broken = False
    assert address(arena.row("cuda:0", 10, torch.float32)) != first


def test_rows_in_circles_are_freed_whatever_thread_finds_them(arena: CudaArena, stream: FakeStream) -> None:
    """Also where that happens within the arena: it does not wait for itself."""
    for _ in range(50):
        circle: list[object] = [arena.row("cuda:0", MIB, torch.uint8)]
        circle.append(circle)
        del circle
        stream.reach()
    gc.collect()
    stream.reach()
    arena.trim()
    assert not arena.nbytes


def test_trim_gives_back_what_nobody_uses(arena: CudaArena, library: FakeCudart, stream: FakeStream) -> None:
    rows = [arena.row("cuda:0", 64 * MIB, torch.uint8) for _ in range(3)]
    spans = [arena.find(row) for row in rows]
    del rows[1]
    arena.trim()
    assert len(library.blocks) == 3, "the device may still work on it"
    stream.reach()
    arena.trim()
    assert len(library.blocks) == 2
    assert [span and span.owner.alive for span in spans] == [True, False, True]
    rows.clear()
    stream.reach()
    arena.trim()
    assert not library.blocks
    again = arena.row("cuda:0", 10, torch.float32)
    found = arena.find(again)
    assert found is not None and found.number == 4, "no number is given twice"


def test_memory_that_torch_keeps_is_given_back_first(library: FakeCudart, stream: FakeStream) -> None:
    library.total = 64 * MIB
    relieved = []

    def relieve() -> None:
        relieved.append(library.total)
        library.total = 128 * MIB

    arena = CudaArena(lambda: Cudart(library), on_cpu, stream.marking, relieve)
    rows = [arena.row("cuda:0", 64 * MIB, torch.uint8) for _ in range(2)]
    assert relieved == [64 * MIB]
    with pytest.raises(torch.OutOfMemoryError, match=r"shared with the accelerator's process: cudaMalloc of 67108864 bytes"):
        arena.row("cuda:0", 1, torch.uint8)
    assert library.last_error == 0, "torch does not find it later"
    del rows[0]
    stream.reach()
    arena.row("cuda:0", 1, torch.uint8)


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("cudaGetDevice", 201, "cudaGetDevice has failed: invalid device context"),
        ("cudaSetDevice", 101, r"cudaSetDevice to 1 has failed: no description \(error 101\)"),
        ("cudaMalloc", 801, "cudaMalloc of 67108864 bytes on device 1 has failed: operation not supported"),
        ("cudaIpcGetMemHandle", 801, "cudaIpcGetMemHandle of memory on device 1 has failed: operation not supported"),
        ("cudaIpcGetMemHandle", 2, "cudaIpcGetMemHandle of memory on device 1 has failed: out of memory"),
    ],
)
def test_calls_that_fail(arena: CudaArena, library: FakeCudart, name: str, code: int, text: str) -> None:
    """Each says which, on what, and why; nothing is left behind; and the next attempt may succeed."""
    library.failing[name] = code
    with pytest.raises(CudaError, match=text):
        arena.start("cuda:1")
    assert not library.blocks and not arena.nbytes
    assert library.last_error == 0
    library.failing.clear()
    arena.start("cuda:1")
    assert library.device == 0


def test_free_fails(arena: CudaArena, library: FakeCudart, stream: FakeStream) -> None:
    arena.start("cuda:0")
    stream.reach()
    library.failing["cudaFree"] = 400
    with pytest.raises(CudaError, match="cudaFree on device 0 has failed: invalid resource handle"):
        arena.trim()


def test_another_process_opens_it(arena: CudaArena, library: FakeCudart) -> None:
    row = arena.row("cuda:2", 10, torch.float32)
    span = arena.find(row)
    assert span is not None and isinstance(span.record, Block)
    theirs = Cudart(library)
    opened = theirs.open(2, span.record.handle)
    assert opened == address(row)
    library.failing["cudaIpcOpenMemHandle"] = 400
    with pytest.raises(CudaError, match="cudaIpcOpenMemHandle of another process's memory on device 2 has failed: invalid res"):
        theirs.open(2, span.record.handle)


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(RuntimeError, match="no CUDA"):
        cudart.load()
    monkeypatch.setattr(torch.version, "cuda", "999.1")
    with pytest.raises(RuntimeError, match=r"libcudart\.so\.999, which torch is built with, cannot be used"):
        cudart.load()


def test_what_torch_is_told_of_the_memory() -> None:
    told = Lent(4096, 10).__cuda_array_interface__
    assert told == {"shape": (10,), "typestr": "|u1", "data": (4096, False), "strides": None, "version": 2}


# --- CPU memory, in a unified device's place -----------------------------------------------------------------------------


def test_host_memory_is_used_again_when_it_is_freed() -> None:
    memory = HostMemory()
    rows = [memory.row("rehearsal:0", 1000, torch.float32) for _ in range(2)]
    spans = [memory.find(row) for row in rows]
    assert all(span is not None and span.fd >= 0 and span.owner.alive for span in spans)
    first, view = address(rows[0]), rows[0][5:]
    del rows[0]
    other = memory.row("rehearsal:0", 1000, torch.float32)
    assert address(other) != first, "a view of it is left"
    del view
    assert address(memory.row("rehearsal:0", 999, torch.float32)) == first
    assert memory.find(torch.ones(10)) is None


# --- on a GPU ------------------------------------------------------------------------------------------------------------

CHILD = """
import sys, torch
from ftlib.frameworks.accelerators.isolated.arena import Lent, wrap
from ftlib.frameworks.accelerators.isolated.cudart import load
torch.cuda.set_device(0)
row = wrap(Lent(load().open(0, bytes.fromhex(sys.argv[1])), int(sys.argv[2])), 0)
row = row[int(sys.argv[3]):][:4000].view(torch.float32)
assert (row == 3.0).all(), row
row.fill_(5.0)
torch.cuda.synchronize()
"""


@pytest.mark.gpu
def test_a_child_works_on_a_row_of_a_real_gpu() -> None:
    arena = CudaArena(cudart.load)
    arena.start(PLACE)
    other, row = arena.row(PLACE, 100, torch.float64), arena.row(PLACE, 1000, torch.float32)
    assert row.device == torch.device(PLACE)
    other.fill_(1.0)
    row.fill_(3.0)
    torch.cuda.synchronize()
    span = arena.find(row)
    assert span is not None and isinstance(span.record, Block)
    arguments = [span.record.handle.hex(), str(span.record.nbytes), str(span.offset)]
    subprocess.run([sys.executable, "-c", CHILD, *arguments], check=True, timeout=120)
    assert bool((row == 5.0).all()) and bool((other == 1.0).all())
    before = arena.nbytes
    for _ in range(50):
        del row
        row = arena.row(PLACE, 1 << 20, torch.float32)
        row.fill_(1.0)
    torch.cuda.synchronize()
    assert arena.nbytes <= 16 * before
    del row, other
    arena.trim()
    assert not arena.nbytes


@pytest.mark.gpu
def test_a_mark_on_a_real_gpu() -> None:
    mark = streams(0)
    with torch.cuda.stream(torch.cuda.Stream(0)):
        torch.cuda._sleep(200_000_000)
        ended = mark()
    assert not ended()
    torch.cuda.synchronize()
    assert ended()
