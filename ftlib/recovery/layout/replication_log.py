"""The replication log: the results of finished calls, as members send them to spares.

On the wire a record is four bytes of length, that many bytes of msgpack, the sums of each bucket as they lie in staging, and a
digest. A length of zero is a keepalive: the sender is alive, and no call has finished meanwhile. The ``Hello`` comes first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgpack
import torch
import xxhash

from consensus import Member

from ...core.tensors.staging import Slot
from .shards import DIGEST

KEEPALIVE = b"\0\0\0\0"
_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 20
"""Maximum bytes of a head."""
_PIECE = 1 << 20
"""Bytes that are passed to the connection at a time."""

Fill = Callable[[memoryview], int]
"""Receives until the view is full; returns the number of bytes, fewer if the connection has ended."""


@dataclass(frozen=True, slots=True)
class ReplicationRecord:
    """The result of a finished call."""

    number: int
    step: int
    """The steps granted when it had finished, its own included."""
    signature: bytes
    kind: str
    """The layout's kind."""
    weight: float
    """The divisor (see ``Results``), by which the sums in ``slots`` have to be divided."""
    view_id: str
    """The view in which the result was computed: two records of one call are equal if their views are."""
    slots: tuple[Slot, ...]
    """The buckets' sums; empty if there is nothing to apply."""

    @property
    def nbytes(self) -> int:
        """Bytes of all sums."""
        return sum(slot.bucket.nbytes for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Hello:
    """The sender's place: the records of all calls after ``finished`` follow."""

    finished: int
    view_id: str
    """The view in which call ``finished`` was computed."""
    state_id: str
    """The id of the sender's state."""
    holders: tuple[Member, ...]
    """The members that have this state, the sender included."""

    def encode(self) -> Iterator[bytes]:
        """The record."""
        members = [[member.id, member.host, member.port] for member in self.holders]
        yield from _framed(msgpack.packb([self.finished, self.view_id, self.state_id, members]))

    @classmethod
    def read(cls, fill: Fill) -> Hello:
        """Inverse of ``encode``; ValueError for anything else, EOFError if the stream ends too early."""
        match _head(fill):
            case [int(finished), str(view_id), str(state_id), list(members)] if finished >= 0 and state_id:
                return cls(finished, view_id, state_id, tuple(_member(entry) for entry in members))
        raise ValueError("this is no beginning of averages: run one release everywhere")


def encode(record: ReplicationRecord, signature: bytes) -> Iterator[bytes | memoryview]:
    """The record as bytes, for a subscriber that wants the sums of calls with that ``signature``."""
    slots = record.slots if record.signature == signature else ()
    nbytes = sum(slot.bucket.nbytes for slot in slots)
    head = msgpack.packb([record.number, record.step, record.signature, record.kind, record.weight, record.view_id, nbytes])
    digest = xxhash.xxh3_128(head)
    yield from _framed(head)
    for view in _views(slots):
        digest.update(view)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
    yield digest.digest()


def read(fill: Fill, signature: bytes, slots: Callable[[], Sequence[Slot]]) -> ReplicationRecord | None:
    """The next record, None for a keepalive. The sums of calls with that ``signature`` are received into ``slots()``.

    ValueError if it is no record, or damaged; EOFError if the stream ends too early.
    """
    packed = _head_bytes(fill)
    if not packed:
        return None
    match _unpacked(packed):
        case [int(number), int(step), bytes(found), str(kind), float(weight), str(view_id), int(nbytes)]:
            pass
        case _:
            raise ValueError("this is no average: run one release everywhere")
    digest = xxhash.xxh3_128(packed)
    into: tuple[Slot, ...] = ()
    if nbytes:
        into = tuple(slots())
        if found != signature or nbytes != sum(slot.bucket.nbytes for slot in into):
            raise ValueError(f"{nbytes} bytes of another average than was asked for")
        for view in _views(into):
            _whole(fill, view)
            digest.update(view)
    found_digest = bytearray(DIGEST)
    _whole(fill, memoryview(found_digest))
    if found_digest != digest.digest():
        raise ValueError("an average arrived damaged")
    return ReplicationRecord(number, step, found, kind, weight, view_id, into)


def _framed(packed: bytes) -> Iterator[bytes]:
    yield _LENGTH.pack(len(packed)) + packed


def _head_bytes(fill: Fill) -> bytes:
    length = bytearray(_LENGTH.size)
    _whole(fill, memoryview(length))
    (count,) = _LENGTH.unpack(length)
    if count > _LONGEST:
        raise ValueError(f"a head of {count} bytes")
    head = bytearray(count)
    _whole(fill, memoryview(head))
    return bytes(head)


def _head(fill: Fill) -> object:
    return _unpacked(_head_bytes(fill))


def _unpacked(packed: bytes) -> object:
    try:
        return msgpack.unpackb(packed)
    except Exception as error:
        raise ValueError(f"this is no average: {error}") from error


def _member(entry: object) -> Member:
    match entry:
        case [str(member_id), str(host), int(port)] if member_id and 0 < port < 1 << 16:
            return Member(member_id, host, port)
    raise ValueError("this is no member: run one release everywhere")


def _views(slots: Sequence[Slot]) -> Iterator[memoryview]:
    for slot in slots:
        if slot.bucket.count:
            yield slot.data.view(torch.uint8).numpy().data


def _whole(fill: Fill, view: memoryview) -> None:
    if len(view) and fill(view) != len(view):
        raise EOFError("it broke off")
