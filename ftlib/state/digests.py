"""Digests of a state, one for each tensor: whether two states are equal, and where they differ, without sending either."""

from __future__ import annotations

from collections.abc import Mapping

import msgpack
import xxhash

from ..common.host_copies import on_host
from .codec import flatten, plain_bytes, raw

_REST = "a number, a text or the shape of a tensor"
"""Stands for all that is no tensor's content."""


def digests(tree: object) -> dict[str, bytes]:
    """A digest of each tensor in ``tree`` by path, and one of the rest. ConfigError names a value that has none.

    Strides do not count: members whose values are equal are.
    """
    packed, tensors = flatten(tree, strides=False)
    found = {_REST: xxhash.xxh3_128_digest(plain_bytes(packed))}
    for path, tensor in zip(tensors, on_host(tensors.values()), strict=True):
        digest = xxhash.xxh3_128()
        for data in raw(tensor):
            digest.update(data)
        found[path] = digest.digest()
    return found


def difference(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> str:
    """The first path at which two states differ; empty if they are equal."""
    paths = [*(path for path in one if path != _REST), *(path for path in other if path != _REST), _REST]
    return next((path for path in paths if one.get(path) != other.get(path)), "")


def pack(found: Mapping[str, bytes]) -> bytes:
    """As bytes."""
    data: bytes = msgpack.packb(dict(found))
    return data


def unpack(data: bytes) -> dict[str, bytes]:
    """The inverse of ``pack``. ValueError if ``data`` is none."""
    try:
        found = msgpack.unpackb(data)
    except Exception as error:
        raise ValueError(f"digests are not readable: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(k, str) and isinstance(v, bytes) for k, v in found.items()):
        raise ValueError("digests have the wrong shape")
    return found
