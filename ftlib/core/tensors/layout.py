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
from typing import NamedTuple

import torch

from ...common.devices import HOST
from .compression.compression import Compression
from .dtypes import wire_dtype
from .trailer import CARRIERS

HEAD_BYTES = 64 * 1024
"""A head carries at most this many bytes of data."""

_SMALL = 16 * 1024
"""Bytes of one tensor that are read and written in about the time that an operation of torch takes by itself."""

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
    compressed: bool = False
    """Whether the data goes by the operations of the layout's compression, not by an allreduce of it as it is."""
    indices: tuple[int, ...] = field(init=False)
    """The tensors of the pieces."""
    whole: bool = field(init=False)
    """True if there are pieces, and all are whole tensors."""
    small: bool = field(init=False)
    """True if these are so many and so small that another pass over them takes less time than an operation for each."""
    frames: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = field(init=False, compare=False, repr=False)
    """Shape, strides and offset of each piece, in elements."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", tuple(piece.index for piece in self.pieces))
        object.__setattr__(self, "whole", bool(self.pieces) and all(piece.shape is not None for piece in self.pieces))
        object.__setattr__(self, "small", len(self.pieces) > 2 and self.nbytes < _SMALL * len(self.pieces))
        shapes = [(piece.stop - piece.start,) if piece.shape is None else piece.shape for piece in self.pieces]
        offsets = [piece.offset for piece in self.pieces]
        frames = tuple((shape, _strides(shape), offset) for shape, offset in zip(shapes, offsets, strict=True))
        object.__setattr__(self, "frames", frames)

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
    indices: frozenset[int] = field(init=False)
    """The tensors in the buckets: all that have elements."""
    spares: int | None = None
    """How many buckets may be staged before the first operation has ended, and so have two slots; None: as many as are under
    way at a time (see ``staging``)."""
    compression: Compression | None = None
    """How buckets that are ``compressed`` are averaged. The head of such a call has no data, and the others are staged after it
    has ended (see ``compressed_attempt``)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "check", self.signature[:_CHECK])
        object.__setattr__(self, "nbytes", sum(bucket.nbytes for bucket in self.buckets))
        object.__setattr__(self, "indices", frozenset(index for bucket in self.buckets for index in bucket.indices))
        object.__setattr__(self, "places", tuple(dict.fromkeys(bucket.place for bucket in self.buckets if bucket.place)))

    @property
    def stages(self) -> int:
        """How many operations a bucket has, at most."""
        return 1 if self.compression is None else max(1, self.compression.stages)

    @property
    def one_by_one(self) -> bool:
        """True if the buckets may be sent before all of them are there (see ``lay_out_in_order``)."""
        return self.spares is not None

    @property
    def head(self) -> Bucket:
        """The bucket that carries the trailer."""
        return self.buckets[0]

    def same_call(self, signature: bytes) -> bool:
        """True if ``signature`` is that of a call with the same tensors, though their buckets may be in another order."""
        return self.signature[_CHECK:] == signature[_CHECK:]


_CHECK = 4
"""Bytes at a signature's beginning that also depend on the order of the tensors in the buckets."""


def lay_out(
    kind: str,
    specs: Sequence[TensorSpec],
    op: str,
    bucket_bytes: int,
    places: Sequence[str] = (),
    compression: Compression | None = None,
) -> Layout:
    """The layout of a call of ``kind`` (its name, and anything else that must agree) over tensors of ``specs``.

    ``places``: the tensors' devices; empty if all are on the CPU. Members must agree on the kind of device, not on its number.
    ``compression``: of the tensors on the CPU that it suits.
    """
    where = places or [HOST] * len(specs)
    names = _names(specs, where)
    fixed = f"{kind}|{op}|{bucket_bytes}|{'|'.join(names)}{_compressed_by(compression)}"
    digest = hashlib.blake2b(fixed.encode(), digest_size=16).digest()
    text = _text(kind, names, where, compression)
    buckets: list[Bucket] = []
    ways = _ways(specs, where, op, compression)
    for way in sorted(dict.fromkeys(ways), key=lambda key: bool(key.place)):  # the CPU's first
        members = [(index, specs[index][1]) for index, found in enumerate(ways) if found == way]
        buckets += _fill(way, members, op, bucket_bytes)
    if compression is not None:
        return Layout(digest, kind, text, _headed(buckets, alone=True), spares=1, compression=compression)
    return Layout(digest, kind, text, _headed(buckets, alone=any(where)))


def lay_out_in_order(
    kind: str,
    specs: Sequence[TensorSpec],
    order: Sequence[int],
    bucket_bytes: int,
    first_bytes: int,
    places: Sequence[str] = (),
    compression: Compression | None = None,
) -> Layout:
    """The layout of an average whose buckets are sent one by one, as soon as their tensors are there.

    ``order``: the indices of ``specs`` in the order in which the tensors are expected. The buckets are in the order in which
    they become complete. ``first_bytes``: the size of the first bucket of each dtype, at most that of the others. A tensor
    larger than a bucket has buckets of its own. Layouts that differ in the order alone are of the ``same_call``.
    """
    where = places or [HOST] * len(specs)
    names = _names(specs, where)
    fixed = f"{kind}|in order|{bucket_bytes}|{first_bytes}|{'|'.join(names)}{_compressed_by(compression)}"
    identity = hashlib.blake2b(fixed.encode(), digest_size=16 - _CHECK).digest()
    check = hashlib.blake2b(identity + repr(list(order)).encode(), digest_size=_CHECK).digest()
    found: list[tuple[int, Bucket]] = []
    ways = _ways(specs, where, "SUM", compression)
    turn = {index: number for number, index in enumerate(order)}
    for way in dict.fromkeys(ways[index] for index in order):
        members = [(index, specs[index][1]) for index in order if ways[index] == way]
        buckets = _fill(way, members, "SUM", bucket_bytes, first_bytes)
        found += [(max(turn[piece.index] for piece in bucket.pieces), bucket) for bucket in buckets]
    found.sort(key=lambda each: each[0])  # stable: the pieces of one tensor stay in order
    in_order = [bucket for _, bucket in found]
    text = _text(kind, names, where, compression)
    if compression is not None:
        return Layout(check + identity, kind, text, _headed(in_order, alone=True), spares=1, compression=compression)
    split = bool(in_order) and in_order[0].pieces[0].shape is None  # its parts are to lie side by side, without a trailer
    headed = _headed(in_order, alone=split or any(where))
    # The small first bucket is ready long before the others; a second slot for each of these would double the memory.
    first = next((bucket for bucket in headed if bucket.count), None)
    alone = first is None or headed[0] is first or first.nbytes > 2 * first_bytes or first.pieces[0].shape is None
    spares = 1 if alone or compression is not None else 2
    return Layout(check + identity, kind, text, headed, spares=spares)


def _names(specs: Sequence[TensorSpec], where: Sequence[str]) -> list[str]:
    return [
        f"{str(dtype).removeprefix('torch.')}{list(shape)}{'@' if place else ''}{place.partition(':')[0]}"
        for (dtype, shape), place in zip(specs, where, strict=True)
    ]


class _Way(NamedTuple):
    """How a tensor is reduced: tensors that are reduced alike share buckets."""

    place: str
    dtype: torch.dtype
    compressed: bool


def _ways(specs: Sequence[TensorSpec], where: Sequence[str], op: str, compression: Compression | None) -> list[_Way]:
    ways = []
    for (dtype, shape), place in zip(specs, where, strict=True):
        wire = wire_dtype(dtype, op)
        compressed = compression is not None and wire is torch.float32 and not place and compression.suits(shape)
        ways.append(_Way(place, wire, compressed))
    return ways


def _compressed_by(compression: Compression | None) -> str:
    return "" if compression is None else f"|compressed by {compression.name}"


def _text(kind: str, names: Sequence[str], where: Sequence[str], compression: Compression | None) -> str:
    kind += "" if compression is None else f" by {compression.name}"
    kinds = sorted({place.partition(":")[0] for place in where if place})
    many = f"{kind} of {len(names)} tensors{' on ' if kinds else ''}{', '.join(kinds)}"
    return many if len(names) > 3 else f"{kind}({', '.join(names)})"


def _headed(buckets: Sequence[Bucket], *, alone: bool) -> tuple[Bucket, ...]:
    """The buckets with a head. ``alone``: the head has no data, since some are on a device or compressed: its operation is
    there at once, and the others begin after it (see ``attempt``).
    """
    if not buckets or alone or buckets[0].nbytes > HEAD_BYTES or buckets[0].dtype not in CARRIERS:
        return (Bucket(torch.uint8, 0, "SUM", ()), *buckets)
    return tuple(buckets)


def _fill(
    way: _Way, members: Sequence[tuple[int, tuple[int, ...]]], op: str, bucket_bytes: int, first_bytes: int | None = None
) -> list[Bucket]:
    """``first_bytes``: the size of the first bucket, at most that of the others, which is the default. A tensor that is larger
    than the first bucket is alone in it.
    """
    dtype = way.dtype
    whole = max(1, bucket_bytes // dtype.itemsize)
    room = whole if first_bytes is None else min(whole, max(1, first_bytes // dtype.itemsize))
    done: list[Bucket] = []
    pieces: list[Piece] = []
    used = 0

    def close() -> None:
        nonlocal pieces, used, room
        if pieces:
            done.append(Bucket(dtype, used, op, tuple(pieces), way.place, way.compressed))
            room = whole
        pieces, used = [], 0

    for index, shape in members:
        count = math.prod(shape)
        if not count:
            continue
        if used + count > room:
            close()
        if count <= whole:
            pieces.append(Piece(index, 0, count, used, shape))
            used += count
            if used > room:
                close()
            continue
        for start in range(0, count, whole):
            close()
            stop = min(start + whole, count)
            pieces.append(Piece(index, start, stop, 0, None))
            used = stop - start
        if first_bytes is not None:
            close()
    close()
    return done


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a contiguous tensor, in elements."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
