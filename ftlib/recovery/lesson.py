"""Lessons on the wire: four bytes of length, so many of msgpack, the sums of each bucket as they lie in staging, a digest.

A length of zero is a beat: the tutor is there, and no call has finished meanwhile. The first record is the ``Hello``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgpack
import torch
import xxhash

from consensus import Member

from ..staging import Slot
from .blocks import DIGEST
from .feed import Lesson

__all__ = ["BEAT", "Hello", "encode", "read"]

BEAT = b"\0\0\0\0"
_LENGTH = struct.Struct("!I")
_LONGEST = 1 << 20
"""Bytes of a head."""
_PIECE = 1 << 20
"""Bytes that are handed to the connection at a time."""

Fill = Callable[[memoryview], int]
"""Receives into all of it; the number of bytes, fewer where the connection has ended."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Where a tutor is: lessons of all calls after ``finished`` follow."""

    finished: int
    origin: str
    """Of its state."""
    holders: tuple[Member, ...]
    """Who has that state too, itself among them."""

    def encode(self) -> Iterator[bytes]:
        """The record."""
        members = [[member.id, member.host, member.port] for member in self.holders]
        yield from _framed(msgpack.packb([self.finished, self.origin, members]))

    @classmethod
    def read(cls, fill: Fill) -> Hello:
        """The inverse; ValueError for anything else, EOFError where it ends before."""
        match _head(fill):
            case [int(finished), str(origin), list(members)] if finished >= 0 and origin:
                return cls(finished, origin, tuple(_member(entry) for entry in members))
        raise ValueError("this is no beginning of averages: run one release everywhere")


def encode(lesson: Lesson, signature: bytes) -> Iterator[bytes | memoryview]:
    """The record for somebody who wants the sums of calls of that ``signature``."""
    slots = lesson.slots if lesson.signature == signature else ()
    nbytes = sum(slot.bucket.nbytes for slot in slots)
    head = msgpack.packb([lesson.number, lesson.signature, lesson.kind, lesson.weight, nbytes])
    digest = xxhash.xxh3_128(head)
    yield from _framed(head)
    for view in _views(slots):
        digest.update(view)
        for start in range(0, len(view), _PIECE):
            yield view[start : start + _PIECE]
    yield digest.digest()


def read(fill: Fill, signature: bytes, slots: Callable[[], Sequence[Slot]]) -> Lesson | None:
    """The next lesson, None for a beat; sums are received into ``slots()``, of calls of that ``signature``.

    ValueError where it is none, or damaged; EOFError where it ends before.
    """
    packed = _head_bytes(fill)
    if not packed:
        return None
    match _unpacked(packed):
        case [int(number), bytes(found), str(kind), float(weight), int(nbytes)]:
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
    proof = bytearray(DIGEST)
    _whole(fill, memoryview(proof))
    if proof != digest.digest():
        raise ValueError("an average arrived damaged")
    return Lesson(number, found, kind, weight, into)


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
