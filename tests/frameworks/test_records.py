"""What a training process and the process that has its group say to each other, when it is nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ftlib.errors import GroupError
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.isolated.group_process import GroupProcess
from ftlib.frameworks.isolated.nursery import Nursery
from ftlib.frameworks.isolated.records import LIMIT, Build, Close, Ended, Ping, Record, RecordError, Run, Segment, Warm, unpack
from ftlib.frameworks.isolated.segments import Segments

CASES = 100_000
MOST = 40 * LIMIT
"""Bytes that reading one record may take, for a moment: JSON of nothing but small values takes that much."""
SOON = 10.0
SPEC = GroupSpec("view", 3, 1, 2, {"store": "127.0.0.1:1234"}, 30.0)
RECORDS: list[Record] = [
    Run(7, OperationKind.ALLREDUCE, "SUM", torch.float32, 0, 0, 3, 4096, 1000),
    Run(2**60, OperationKind.SEND, "", torch.uint8, 5, 2**40, 2**32 - 1, 2**63, 2**64 - 1),
    Build(SPEC, "127.0.0.1"),
    Segment(1, 1 << 26),
    Ping(),
    Ended(9),
    Ended(9, "no group", (1, 2, 3), told=False),
    Close(),
    Warm(),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert unpack(record.pack()) == record
    assert len(record.pack()) <= LIMIT


def test_long_texts_and_long_lists_are_cut() -> None:
    told = Ended(1, "x" * 10**6, tuple(range(10**5)))
    assert len(told.pack()) <= LIMIT
    assert unpack(told.pack()) == Ended(1, "x" * 4000, tuple(range(4096)))


def bad_builds() -> Iterator[bytes]:
    """Of the right form, with values that are none."""
    values = {"view_id": "view", "epoch": 3, "rank": 1, "size": 2, "store": {"store": "a:1"}, "timeout": 30.0}
    for name, value in [
        *((name, None) for name in values),
        *((name, [1]) for name in values),
        *((name, "no") for name in values if name != "view_id"),
        ("rank", 2),
        ("rank", -1),
        ("rank", True),
        ("rank", 1.0),
        ("store", {"store": 5}),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", -1),
        ("more", 1),
    ]:
        yield json.dumps([{**values, name: value}, "127.0.0.1"]).encode()
    yield json.dumps([values, 5]).encode()
    yield json.dumps([values]).encode()
    yield b"[" * (LIMIT - 1)
    yield b'{"a":' * 12_000
    yield b"9" * (LIMIT - 1)
    yield b"\xff\xfe" + b"[" * 100


def test_groups_that_cannot_be_built() -> None:
    for text in bad_builds():
        with pytest.raises(RecordError):
            unpack(bytes([Build.CODE]) + text)


def mutated(chance: random.Random) -> bytes:
    """A record with something wrong, or bytes that never were one."""
    data = bytearray(chance.choice(RECORDS).pack())
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(7):
            case 0 if data:
                data[place % len(data)] = chance.randrange(256)
            case 1 if data:
                data[place % len(data)] ^= 1 << chance.randrange(8)
            case 2:
                del data[place:]
            case 3:
                data[place:place] = chance.randbytes(chance.choice([1, 4, 100]))
            case 4:
                data[:1] = bytes([chance.randrange(9)])
            case 5:
                data[place : place + 8] = chance.choice([b"\xff" * 8, b"\0" * 8, chance.randbytes(8)])
            case _ if chance.random() < 0.02:
                data[place:place] = chance.choice([b"[", b"1,", b'"', b"\0"]) * chance.randrange(LIMIT)
    return bytes(data)


def test_fuzzed() -> None:
    """An error or a record that can be sent again, nothing else; and no record makes its reader take much memory."""
    chance, wrong, most = random.Random(15), 0, 0
    for number in range(CASES):
        data = mutated(chance)
        watched = number % 10 == 0 or len(data) > 1000
        if watched:
            tracemalloc.start()
        try:
            record = unpack(data)
        except RecordError:
            wrong += 1
        else:
            assert unpack(record.pack()) == record, data[:100]
        finally:
            if watched:
                most = max(most, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
    assert CASES // 10 < wrong < CASES
    assert most < MOST


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery("ftlib.frameworks.isolated.group_child:prepare")
    yield nursery
    nursery.close()


GARBAGE: list[Callable[[random.Random], bytes]] = [
    lambda chance: chance.randbytes(100),
    lambda _: b"\xff" * LIMIT,
    lambda _: Ended(1).pack(),  # no order
    lambda _: Segment(1, 1 << 62).pack(),  # without a descriptor
    lambda _: bytes([Build.CODE]) + b"[" * 30_000,
    lambda _: bytes([Run.CODE]),
]


@pytest.mark.process
@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_child_that_is_told_nonsense_ends(nursery: Nursery, garbage: Callable[[random.Random], bytes]) -> None:
    """And whatever is under way there fails."""
    sock, pid, pidfd = nursery.fork()
    again, segments = sock.dup(), Segments()
    child = GroupProcess(sock, pid, pidfd, segments)
    server = socket.create_server(("127.0.0.1", 0))  # where nobody is met
    with again, server:
        ended = threading.Event()
        store = {"store": f"127.0.0.1:{server.getsockname()[1]}"}
        child.build(GroupSpec("v", 1, 0, 2, store, 30.0), "127.0.0.1", lambda told: told.text and ended.set())
        again.send(garbage(random.Random(1)))
        assert ended.wait(SOON)
        assert child.gone.wait(SOON)
        late = child.run(Operation(OperationKind.ALLREDUCE, segments.allocate(10, torch.float32), "SUM"))
        with pytest.raises(GroupError):
            late.wait(SOON)
    assert not alive(pid)


@pytest.mark.process
def test_operations_out_of_bounds_fail_and_the_child_lives(nursery: Nursery) -> None:
    sock, pid, pidfd = nursery.fork()
    with sock:
        for run in (
            Run(1, OperationKind.ALLREDUCE, "SUM", torch.float32, 0, 0, 3, 0, 10),
            Run(2, OperationKind.SEND, "", torch.float64, 9, 2**50, 2**32 - 1, 2**64 - 1, 2**64 - 1),
        ):
            sock.send(run.pack())
            sock.settimeout(SOON)
            told = unpack(sock.recv(LIMIT))
            assert isinstance(told, Ended) and told.number == run.number and told.text
        sock.send(Ping().pack())
        assert unpack(sock.recv(LIMIT)) == Ping()
    assert select.select([pidfd], [], [], SOON)[0], "it ends with its connection"
    os.close(pidfd)
    assert not alive(pid)


@pytest.mark.process
@pytest.mark.parametrize("number", range(20))
def test_a_child_that_talks_nonsense_is_killed(number: int) -> None:
    """And whatever was under way there fails."""
    chance = random.Random(number)
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        segments = Segments()
        child = GroupProcess(ours, process.pid, os.pidfd_open(process.pid), segments)
        with theirs:
            work = child.run(Operation(OperationKind.ALLREDUCE, segments.allocate(10, torch.float32), "SUM"))
            outside = child.run(Operation(OperationKind.ALLREDUCE, torch.ones(10), "SUM"))
            for _ in range(5):
                with contextlib.suppress(OSError):  # it reads no further
                    theirs.send(bytes([0x7F]) + mutated(chance)[:1000])
            for each in (work, outside):
                with pytest.raises(GroupError, match="nonsense"):
                    each.wait(SOON)
                assert each.done()
        assert process.wait(SOON) == -9
    finally:
        process.kill()
        process.wait()


def alive(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return " Z" not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
