"""Memory that is used again and again: touching new memory takes longer than filling it."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Room:
    """Memory for the copies of one fragment at a time."""

    def __init__(self) -> None:
        """There is none yet."""
        self._rows: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def like(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of the same shapes, dtypes and devices, with any values; valid until the next call."""
        found, used = [], dict.fromkeys(self._rows, 0)
        for key in {(tensor.dtype, tensor.device) for tensor in tensors}:
            count = sum(each.numel() for each in tensors if (each.dtype, each.device) == key)
            if key not in self._rows or self._rows[key].numel() < count:
                self._rows[key] = torch.empty(count, dtype=key[0], device=key[1])
            used[key] = 0
        for tensor in tensors:
            key = tensor.dtype, tensor.device
            start = used[key]
            used[key] += tensor.numel()
            found.append(self._rows[key][start : used[key]].view(tensor.shape))
        return found
