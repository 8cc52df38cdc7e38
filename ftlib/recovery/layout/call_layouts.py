"""A call's layout as bytes: a joiner that takes part in calls that its own program has not entered learns layouts from others.

msgpack: ``[signature, kind, text, compression's name or "", [bucket, ...]]``, a bucket being ``[dtype, count, op, [[index,
start, stop, offset, shape or nil], ...], place, compressed]``. The reader checks everything, as sizes become allocations.
"""

from __future__ import annotations

import math
from typing import TypeGuard

import msgpack
import torch

from ...core.tensors.compression.names import known_by_name
from ...core.tensors.layout import Bucket, Layout, Piece

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
    )
}
"""The dtypes that buckets may have, by name."""
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_OPERATIONS = frozenset({"SUM", "MIN", "MAX", "PRODUCT"})
_MOST_DIMENSIONS = 64
_MOST_BYTES = 1 << 40
"""Maximum size of all buckets together."""
_LONGEST = 1 << 62
_LONGEST_NAME = 256
"""Maximum length of a compression's name."""
_LONGEST_PLACE = 32
"""Maximum length of a device's name."""


def encode(layout: Layout) -> bytes:
    """The bytes of ``layout``."""
    buckets = [
        [
            _NAMES[bucket.dtype],
            bucket.count,
            bucket.op,
            [
                [piece.index, piece.start, piece.stop, piece.offset, None if piece.shape is None else list(piece.shape)]
                for piece in bucket.pieces
            ],
            bucket.place,
            bucket.compressed,
        ]
        for bucket in layout.buckets
    ]
    compression = "" if layout.compression is None else layout.compression.name
    return bytes(msgpack.packb([layout.signature, layout.kind, layout.text, compression, buckets]))


def decode(data: bytes) -> Layout:
    """Inverse of ``encode``; ValueError if ``data`` is no layout."""
    try:
        packed = msgpack.unpackb(data)
    except Exception as error:
        raise ValueError(f"this is no layout: {error}") from error
    match packed:
        case [bytes(signature), str(kind), str(text), str(name), list(found)] if (
            len(signature) == 16 and found and len(name) <= _LONGEST_NAME
        ):
            buckets = tuple(_bucket(bucket) for bucket in found)
            if not name and any(bucket.compressed for bucket in buckets):
                raise ValueError("this is no layout: a bucket is compressed, and nothing says how")
            spares = 1 if name else None
            compression = known_by_name(name) if name else None
            layout = Layout(signature, kind, text, buckets, spares=spares, compression=compression)
            if layout.nbytes > _MOST_BYTES:
                raise ValueError(f"this is no layout: {layout.nbytes} bytes are too many")
            return layout
    raise ValueError("this is no layout: it has the wrong shape")


def _bucket(packed: object) -> Bucket:
    match packed:
        case [str(name), int(count), str(op), list(found), str(place), bool(compressed)] if (
            name in _DTYPES and _natural(count) and op in _OPERATIONS and len(place) <= _LONGEST_PLACE
        ):
            pieces = tuple(_piece(piece) for piece in found)
            end = 0
            for piece in pieces:
                if piece.offset != end:
                    raise ValueError(f"this is no layout: a piece at {piece.offset} follows one that ends at {end}")
                end += piece.stop - piece.start
            if end != count:
                raise ValueError(f"this is no layout: a bucket of {count} elements has pieces of {end}")
            if compressed and (name != "float32" or place):
                raise ValueError(f"this is no layout: a bucket of {name} at {place!r} is compressed")
            return Bucket(_DTYPES[name], count, op, pieces, place, compressed)
    raise ValueError("this is no layout: a bucket has the wrong shape")


def _piece(packed: object) -> Piece:
    match packed:
        case [int(index), int(start), int(stop), int(offset), shape] if all(map(_natural, (index, start, stop, offset))):
            if start < stop and (shape is None or _is_whole(shape, start, stop)):
                return Piece(index, start, stop, offset, None if shape is None else tuple(shape))
    raise ValueError("this is no layout: a piece has the wrong shape")


def _is_whole(shape: object, start: int, stop: int) -> TypeGuard[list[int]]:
    """True if a piece from ``start`` to ``stop`` is a whole tensor of that shape."""
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS or not all(map(_natural, shape)):
        return False
    return start == 0 and stop == math.prod(shape)


def _natural(value: object) -> bool:
    return type(value) is int and 0 <= value < _LONGEST
