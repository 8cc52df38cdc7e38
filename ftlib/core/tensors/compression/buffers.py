"""Rows of memory for compressed values, used again from call to call: fresh memory would cost a page fault every 4 KB."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Allocate = Callable[[int, torch.dtype], torch.Tensor]
"""A row of so many elements: see ``Framework.allocate``."""


class Buffers:
    """Owned by the training thread."""

    def __init__(self, allocate: Allocate) -> None:
        """``allocate``: see ``Framework``."""
        self._allocate = allocate
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, nbytes: int) -> torch.Tensor:
        """A row of ``nbytes`` bytes."""
        rows = self._free.get(nbytes)
        return rows.pop() if rows else self._allocate(nbytes, torch.uint8)

    def give(self, rows: Sequence[torch.Tensor]) -> None:
        """Nothing uses these rows any more. Rows that are never given back are simply freed."""
        for row in rows:
            self._free.setdefault(row.numel(), []).append(row)
