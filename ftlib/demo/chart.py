"""A curve in a terminal: braille characters, two dots wide and four high each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["braille"]

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bit of a dot by column and row, from the top."""


def braille(
    points: Sequence[tuple[float, float]], left: float, right: float, width: int, height: int
) -> tuple[list[str], float, float]:
    """``height`` lines of ``width`` characters: (x, y > 0) from ``left`` to ``right``, y on a logarithmic axis; its ends.

    Points that share a dot's column become their geometric mean; neighbours are connected.
    """
    columns: dict[int, list[float]] = {}
    span = max(right - left, 1e-9)
    for x, y in points:
        if left <= x <= right and y > 0:
            columns.setdefault(min(2 * width - 1, int((x - left) / span * 2 * width)), []).append(math.log(y))
    cells = [[0] * width for _ in range(height)]
    means = {column: sum(values) / len(values) for column, values in sorted(columns.items())}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)
    before: int | None = None
    for column, value in means.items():
        row = round((high - value) / max(high - low, 1e-9) * (4 * height - 1))
        begin = row if before is None else before
        for dot in range(min(begin, row), max(begin, row) + 1):
            cells[dot // 4][column // 2] |= _DOTS[column % 2][dot % 4]
        before = row
    return ["".join(chr(0x2800 + cell) for cell in line) for line in cells], math.exp(high), math.exp(low)
