"""What a training process and the process that has its group say to each other, when it is nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from ftlib.errors import GroupError
from ftlib.frameworks.accelerators.isolated import records as accelerators
from ftlib.frameworks.accelerators.isolated.records import (
    PIECES,
    Ask,
    Begin,
    Block,
    ChildFacts,
    Decided,
    Launch,
    Piece,
    Start,
    Started,
    Told,
    Trouble,
)
from ftlib.frameworks.base import GroupSpec, Operation, OperationKind
from ftlib.frameworks.isolated.group_process import GroupProcess
from ftlib.frameworks.isolated.nursery import Nursery
from ftlib.frameworks.isolated.records import (
    LIMIT,
    Build,
    Close,
    Ended,
    Packed,
    Ping,
    Record,
    RecordError,
    Run,
    Segment,
    Warm,
    unpack,
)
from ftlib.frameworks.isolated.segments import Segments
from ftlib.frameworks.isolated.spares import Spares
from tests.harness.basics import eventually, lives

CASES = 100_000
MOST = 40 * LIMIT
"""Bytes that reading one record may take, for a moment: JSON of nothing but small values takes that much."""
SOON = 60.0
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


FACTS = {"store": "127.0.0.1:1234", "id": "5" * 256, "gerät": "\u20ac"}
PIECE = Piece(OperationKind.ALLREDUCE, "SUM", torch.bfloat16, 0, 3, 4096, 1000)
COMMUNICATORS: list[accelerators.Record] = [
    Start("127.0.0.1", "cuda:3"),
    Started(),
    Started("no such device", mistaken=True),
    Ask(SPEC),
    ChildFacts(FACTS),
    ChildFacts({}, "not now"),
    Told((FACTS, {}, FACTS)),
    Begin(SPEC),
    Decided(),
    Decided("it has met trouble"),
    Launch(7, (PIECE, Piece(OperationKind.BROADCAST, "", torch.uint8, 5, 2**32 - 1, 2**63, 2**64 - 1))),
    Trouble("an error"),
    Block(3, 7, 1 << 40, bytes(range(64))),
    Segment(1, 1 << 26),
    Ping(),
    Ended(9, "badly"),
]
"""What is said of communicators."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert unpack(record.pack()) == record
    assert len(record.pack()) <= LIMIT


@pytest.mark.parametrize("record", [*COMMUNICATORS, Launch(2**60, (PIECE,) * PIECES)], ids=lambda record: type(record).__name__)
def test_a_record_of_communicators_comes_back_as_it_was(record: accelerators.Record) -> None:
    assert accelerators.unpack(record.pack()) == record
    assert len(record.pack()) <= LIMIT


def test_facts_of_many_ranks_are_told_in_few_records() -> None:
    facts = [{"rank": str(rank), "id": "x" * (rank % 300)} for rank in range(3000)]
    records = list(accelerators.telling(facts))
    assert all(len(record.pack()) <= LIMIT for record in records) and len(records) < 15
    assert [each for record in records for each in accelerators.unpack(record.pack()).facts] == facts  # type: ignore[union-attr]
    assert [record.facts for record in accelerators.telling([])] == [()]  # type: ignore[attr-defined]
    with pytest.raises(GroupError, match=r"facts of rank 1 have 10\d+ bytes"):
        list(accelerators.telling([{}, {"id": "x" * 10_000}]))


def test_what_is_too_long_is_cut_or_said() -> None:
    assert unpacked(Trouble("x" * 10**6)) == Trouble("x" * 4000)
    assert unpacked(Trouble("")) == Trouble("it has failed"), "it is never taken for none"
    assert unpacked(ChildFacts({"id": "x" * 10**5})) == ChildFacts({}, "the accelerator's facts are too long")
    assert unpacked(ChildFacts({}, "\U0001f680" * 10**6)) == ChildFacts({}, "\U0001f680" * 600)


@pytest.mark.parametrize(
    "data",
    [
        *(
            bytes([kind.CODE]) + text
            for kind in (Start, Ask, ChildFacts, Told, Begin)
            for text in (b"", b"5", b"[]", b"[5]", b"{}")
            if (kind, text) != (Told, b"[]")
        ),
        bytes([ChildFacts.CODE]) + b'[{"a":5},""]',
        bytes([Told.CODE]) + b'[{"a":"b"},5]',
        bytes([Started.CODE]),
        bytes([Started.CODE, 2]),
        bytes([Trouble.CODE]),
        Launch(1, (PIECE,)).pack()[:-1],
        Launch(1, (PIECE,)).pack() + b"\0",
        bytes([Launch.CODE]) + b"\0" * 8 + b"\xff\xff" + b"\0" * 60_000,
        Block(1, 0, 1, bytes(64)).pack() + b"\0",
        Run(7, OperationKind.ALLREDUCE, "SUM", torch.float32, 0, 0, 3, 4096, 1000).pack(),
    ],
)
def test_what_is_no_record_of_communicators(data: bytes) -> None:
    with pytest.raises(RecordError):
        accelerators.unpack(data)


def unpacked(record: Packed) -> Packed:
    assert len(record.pack()) <= LIMIT
    return accelerators.unpack(record.pack())


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


def mutated(chance: random.Random, records: Sequence[Packed] = RECORDS) -> bytes:
    """A record with something wrong, or bytes that never were one."""
    data = bytearray(chance.choice(records).pack())
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
                data[:1] = chance.choice(records).pack()[:1]
            case 5:
                data[place : place + 8] = chance.choice([b"\xff" * 8, b"\0" * 8, chance.randbytes(8)])
            case _ if chance.random() < 0.02:
                data[place:place] = chance.choice([b"[", b"1,", b'"', b"\0"]) * chance.randrange(LIMIT)
    return bytes(data)


@pytest.mark.parametrize(
    ("records", "read", "cases"),
    [(RECORDS, unpack, CASES), (COMMUNICATORS, accelerators.unpack, CASES // 3)],
    ids=["groups", "communicators"],
)
def test_fuzzed(records: Sequence[Packed], read: Callable[[bytes], Packed], cases: int) -> None:
    """An error or a record that can be sent again, nothing else; and no record makes its reader take much memory."""
    chance, wrong, most = random.Random(15), 0, 0
    for number in range(cases):
        data = mutated(chance, records)
        watched = number % 10 == 0 or len(data) > 1000
        if watched:
            tracemalloc.start()
        try:
            record = read(data)
        except RecordError:
            wrong += 1
        else:
            assert read(record.pack()) == record, data[:100]
        finally:
            if watched:
                most = max(most, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
    assert cases // 10 < wrong < cases
    assert most < MOST


# --- real processes --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery("ftlib.frameworks.isolated.group_child:prepare")
    yield nursery
    nursery.close()


@pytest.mark.process
def test_what_python_skips_in_its_path_is_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.path", [tmp_path, None, *sys.path])
    nursery = Nursery("ftlib.frameworks.isolated.group_child:prepare")
    try:
        sock, _, pidfd = nursery.fork()
        sock.close()
        os.close(pidfd)
    finally:
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
    assert not lives(pid)


@pytest.mark.process
def test_a_child_that_has_ended_since_it_was_taken_builds_nothing_and_says_so_at_once(nursery: Nursery) -> None:
    """Else the view would wait for a group of which nothing is heard any more, until its members are called unready."""
    child = GroupProcess(*nursery.fork(), Segments())
    os.kill(child.pid, signal.SIGKILL)
    assert child.gone.wait(SOON)
    told: list[Ended] = []
    child.build(GroupSpec("v", 1, 0, 2, {}, 30.0), "127.0.0.1", told.append)
    assert [each.text.split(": ")[0] for each in told] == [f"the group's process {child.pid} is gone"]


@pytest.mark.process
def test_a_child_that_nothing_is_left_to_listen_to_ends(nursery: Nursery) -> None:
    pids: list[int] = []

    def adopt(_sock: object, pid: int, *_: object) -> GroupProcess:
        pids.append(pid)
        raise OSError(24, "Too many open files")

    with pytest.raises(GroupError, match="Too many open files"):
        Spares(nursery, adopt, GroupProcess.warm).take()
    eventually(lambda: not lives(pids[0]), "its end")


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
    assert not lives(pid)


@pytest.mark.process
@pytest.mark.parametrize("number", range(20))
def test_a_child_that_talks_nonsense_is_killed(number: int) -> None:
    """And whatever was under way there fails."""
    chance = random.Random(number)
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
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
