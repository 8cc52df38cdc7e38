"""Many integers as few bytes: the form in which a state of the data is sent."""

from __future__ import annotations

import array
import sys
import zlib
from collections.abc import Iterable


def packed(numbers: Iterable[int]) -> bytes:
    """Return 64 bits for each number, little-endian, compressed."""
    numbers = array.array("q", numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), 1)


def unpacked(data: bytes) -> list[int]:
    """The inverse of ``packed``. Raises zlib.error or ValueError for anything else."""
    numbers = array.array("q")
    numbers.frombytes(zlib.decompress(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
