"""The order of an epoch: position -> index in the dataset. The same at every member for the same seed and epoch."""

from __future__ import annotations

import hashlib

import torch

from .ranges import Ranges

_INT32 = 2**31


class Permutation:
    """The order of one epoch. Four bytes a sample if the dataset has less than 2**31 of them; none without shuffling."""

    def __init__(self, size: int, seed: int, epoch: int, *, shuffle: bool) -> None:
        """``size``: of the dataset."""
        self.epoch = epoch
        self._order: torch.Tensor | None = None
        if shuffle:
            # Hashed: with neighbouring seeds, one job's order must not be that of the other job's next epoch.
            digest = hashlib.blake2b(f"{seed} {epoch}".encode(), digest_size=8).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
            kind = torch.int32 if size < _INT32 else torch.int64
            self._order = torch.randperm(size, generator=generator, dtype=kind, device="cpu")

    def indices(self, positions: Ranges) -> list[int]:
        """Return the dataset indices of these positions."""
        if self._order is None:
            return [index for start, stop in positions for index in range(start, stop)]
        if len(positions) == 1:
            [(start, stop)] = positions
            return self._order[start:stop].tolist()
        return [index for start, stop in positions for index in self._order[start:stop].tolist()]
