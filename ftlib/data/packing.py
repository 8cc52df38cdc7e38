"""Many integers as few bytes: what a state of the data travels as."""

from __future__ import annotations

import array
import sys
import zlib
from collections.abc import Iterable


def packed(numbers: Iterable[int]) -> bytes:
    """As 64 bits each, little-endian, compressed."""
    numbers = array.array("q", numbers)
    if sys.byteorder == "big":
        numbers.byteswap()
    return zlib.compress(numbers.tobytes(), 1)


def unpacked(data: bytes) -> list[int]:
    """The inverse. zlib.error or ValueError where it is none."""
    numbers = array.array("q")
    numbers.frombytes(zlib.decompress(data))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
