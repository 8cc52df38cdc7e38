"""What a replication sender writes, read again: all of it, and nothing that is not it."""

from __future__ import annotations

import io

import msgpack
import pytest
import torch

from consensus import Member
from ftlib.core.tensors.layout import Layout, lay_out
from ftlib.core.tensors.staging import Slot
from ftlib.recovery.layout.replication_log import KEEPALIVE, Fill, Hello, ReplicationRecord, encode, read

HELLO = Hello(7, "0a", "a", (Member("a", "10.0.0.1", 1), Member("b", "host", 65535)))


def filling(data: bytes) -> Fill:
    return io.BytesIO(data).readinto


def framed(*values: object) -> bytes:
    packed: bytes = msgpack.packb(list(values))
    return len(packed).to_bytes(4, "big") + packed


def test_a_beginning_comes_through() -> None:
    assert Hello.read(filling(b"".join(HELLO.encode()))) == HELLO
    first = Hello(0, "", "a", ())
    assert Hello.read(filling(b"".join(first.encode()))) == first


@pytest.mark.parametrize(
    "values",
    [
        (-1, "0a", "a", []),
        (1, "0a", "", []),
        (1, "0a", "a"),
        (1, "a", []),
        (1, "0a", "a", [["b", "host", 0]]),
        (1, "0a", "a", [["b", "host", 65536]]),
        (1, "0a", "a", [["", "host", 1]]),
        (1, "0a", "a", [["b", "host", "1"]]),
    ],
    ids=str,
)
def test_anything_else_is_none(values: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="run one release everywhere"):
        Hello.read(filling(framed(*values)))


def test_what_is_no_record_at_all() -> None:
    with pytest.raises(ValueError, match="no average"):
        Hello.read(filling(b"\0\0\0\1\xc1"))
    with pytest.raises(ValueError, match="a head of 1048577 bytes"):
        Hello.read(filling((2**20 + 1).to_bytes(4, "big")))


def test_what_breaks_off() -> None:
    whole = b"".join(HELLO.encode())
    for length in range(len(whole)):
        with pytest.raises(EOFError):
            Hello.read(filling(whole[:length]))


def test_a_record_without_sums_comes_through_unless_it_is_damaged() -> None:
    record = ReplicationRecord(8, 5, b"s" * 16, "barrier", 0.0, "0a", ())
    data = b"".join(map(bytes, encode(record, b"another")))
    assert read(filling(data), b"another", tuple) == record
    damaged = data[:-1] + bytes([data[-1] ^ 1])
    with pytest.raises(ValueError, match="damaged"):
        read(filling(damaged), b"another", tuple)
    assert read(filling(KEEPALIVE), b"another", tuple) is None


def test_sums_come_through_where_they_are_those_that_were_asked_for() -> None:
    narrow, wide = (lay_out("average", [(torch.float32, (width,))], "SUM", 1 << 20) for width in (3, 4))

    def slots(layout: Layout) -> tuple[Slot, ...]:
        return tuple(Slot(bucket, 0) for bucket in layout.buckets)

    record = ReplicationRecord(8, 5, narrow.signature, "average", 2.0, "0a", slots(narrow))
    for slot in record.slots:
        slot.data.copy_(torch.arange(slot.bucket.count))
    data = b"".join(map(bytes, encode(record, narrow.signature)))
    found = read(filling(data), narrow.signature, lambda: slots(narrow))
    assert found is not None
    assert [slot.data.tolist() for slot in found.slots] == [slot.data.tolist() for slot in record.slots]
    for signature, given in ((wide.signature, narrow), (narrow.signature, wide)):
        with pytest.raises(ValueError, match="bytes of another average than was asked for"):
            read(filling(data), signature, lambda given=given: slots(given))  # type: ignore[misc]
