"""How bytes of the state travel: in blocks, each with a digest of its own, so that whoever breaks off goes on at a block."""

from __future__ import annotations

from collections.abc import Iterator

import xxhash

__all__ = ["BLOCK", "DIGEST", "blocks", "digest_of"]

BLOCK = 4 << 20
"""Bytes of a block, but for a stripe's last."""
DIGEST = 16
"""Bytes of a digest."""


def blocks(offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Where the blocks of ``nbytes`` begin and end, from ``offset`` on. ValueError where no block begins there."""
    if offset % BLOCK or not 0 <= offset <= nbytes:
        raise ValueError(f"no block of {nbytes} bytes begins at {offset}: give a multiple of {BLOCK}")
    for start in range(offset, nbytes, BLOCK):
        yield start, min(start + BLOCK, nbytes)


def digest_of(*parts: memoryview) -> bytes:
    """xxh3_128 of the bytes of ``parts`` in a row. Other threads run meanwhile."""
    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part)
    return digest.digest()
