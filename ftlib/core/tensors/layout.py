"""The layout of a call's tensors in flat buckets: a pure function of kinds, shapes and dtypes, equal at all members.

Tensors that are reduced in one dtype (see ``dtypes``) share buckets, in order; a tensor larger than a bucket is split. The
first bucket (the *head*) carries the trailer: together with data if there is little of it, else alone, so that every call
starts with a small operation.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ...common.devices import HOST
from .dtypes import wire_dtype
from .trailer import CARRIERS

HEAD_BYTES = 64 * 1024
"""A head carries at most this many bytes of data."""

TensorSpec = tuple[torch.dtype, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements ``start`` to ``stop`` of tensor ``index`` (in logical order), at ``offset`` elements in the bucket."""

    index: int
    start: int
    stop: int
    offset: int
    shape: tuple[int, ...] | None
    """The tensor's shape if the piece is the whole tensor, else None."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One operation's buffer: ``count`` elements of data, then the trailer in the head. ``dtype``: the wire's."""

    dtype: torch.dtype
    count: int
    op: str
    pieces: tuple[Piece, ...]
    place: str = HOST
    """The device of the tensors (see ``common.devices``)."""

    @property
    def nbytes(self) -> int:
        """Bytes of data, without the trailer."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """The buckets of one call. Calls with equal signatures have equal layouts at all members."""

    signature: bytes
    """16 bytes: hash of everything that the members of a call must agree on."""
    kind: str
    """What the call does: ``average``, ``allreduce SUM``, ``broadcast from 2``, ``barrier``."""
    text: str
    """Kind and tensors for people, shortened."""
    buckets: tuple[Bucket, ...]
    check: bytes = field(init=False)
    """Four bytes of the signature, for the trailer."""
    nbytes: int = field(init=False)
    """Bytes of data in all buckets."""
    places: tuple[str, ...] = field(init=False)
    """The devices of tensors that are not on the CPU."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "check", self.signature[:4])
        object.__setattr__(self, "nbytes", sum(bucket.nbytes for bucket in self.buckets))
        object.__setattr__(self, "places", tuple(dict.fromkeys(bucket.place for bucket in self.buckets if bucket.place)))

    @property
    def head(self) -> Bucket:
        """The bucket that carries the trailer."""
        return self.buckets[0]


def lay_out(kind: str, specs: Sequence[TensorSpec], op: str, bucket_bytes: int, places: Sequence[str] = ()) -> Layout:
    """The layout of a call of ``kind`` (its name, and anything else that must agree) over tensors of ``specs``.

    ``places``: the tensors' devices; empty if all are on the CPU. Members must agree on the kind of device, not on its number.
    """
    where = places or [HOST] * len(specs)
    names = [
        f"{str(dtype).removeprefix('torch.')}{list(shape)}{'@' if place else ''}{place.partition(':')[0]}"
        for (dtype, shape), place in zip(specs, where, strict=True)
    ]
    digest = hashlib.blake2b(f"{kind}|{op}|{bucket_bytes}|{'|'.join(names)}".encode(), digest_size=16).digest()
    kinds = sorted({place.partition(":")[0] for place in where if place})
    many = f"{kind} of {len(names)} tensors{' on ' if kinds else ''}{', '.join(kinds)}"
    text = many if len(names) > 3 else f"{kind}({', '.join(names)})"
    buckets: list[Bucket] = []
    wired = [(place, wire_dtype(dtype, op)) for (dtype, _), place in zip(specs, where, strict=True)]
    for place, dtype in sorted(dict.fromkeys(wired), key=lambda key: bool(key[0])):  # the CPU's first
        members = [(index, specs[index][1]) for index, found in enumerate(wired) if found == (place, dtype)]
        buckets += _fill(dtype, members, op, bucket_bytes, place)
    # With a device, the head is always alone: its operation is there at once, and the others begin after it (see ``attempt``).
    if not buckets or any(where) or buckets[0].nbytes > HEAD_BYTES or buckets[0].dtype not in CARRIERS:
        buckets.insert(0, Bucket(torch.uint8, 0, "SUM", ()))
    return Layout(digest, kind, text, tuple(buckets))


def _fill(
    dtype: torch.dtype, members: Sequence[tuple[int, tuple[int, ...]]], op: str, bucket_bytes: int, place: str
) -> list[Bucket]:
    room = max(1, bucket_bytes // dtype.itemsize)
    done: list[Bucket] = []
    pieces: list[Piece] = []
    used = 0

    def close() -> None:
        nonlocal pieces, used
        if pieces:
            done.append(Bucket(dtype, used, op, tuple(pieces), place))
        pieces, used = [], 0

    for index, shape in members:
        count = math.prod(shape)
        if not count:
            continue
        if used + count > room:
            close()
        if count <= room:
            pieces.append(Piece(index, 0, count, used, shape))
            used += count
            continue
        for start in range(0, count, room):
            close()
            stop = min(start + room, count)
            pieces.append(Piece(index, start, stop, 0, None))
            used = stop - start
    close()
    return done
