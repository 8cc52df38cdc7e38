"""The data: scikit-learn's 1,797 handwritten digits, with a fixed split. Nothing is downloaded.

The demo's main process reads the digits and saves arrays, so that workers need not import scikit-learn (a second of CPU each).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

TEST = 360
"""Images held back for the test."""
_SPLIT_SEED = 0


@dataclass(frozen=True, slots=True)
class Digits:
    """Images: float32 [n, 8, 8] in 0..1. Labels: int64 [n] in 0..9."""

    train_images: npt.NDArray[np.float32]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.float32]
    test_labels: npt.NDArray[np.int64]

    @classmethod
    def bundled(cls) -> Digits:
        """Return the digits of scikit-learn; the split is the same for every seed of the demo."""
        from sklearn.datasets import load_digits  # noqa: PLC0415 - an extra, and slow to import

        bunch: Any = load_digits()
        images = (bunch.images / 16).astype(np.float32)
        labels = bunch.target.astype(np.int64)
        order = np.random.default_rng(_SPLIT_SEED).permutation(len(images))
        test, train = order[:TEST], order[TEST:]
        return cls(images[train], labels[train], images[test], labels[test])

    @classmethod
    def load(cls, path: Path) -> Digits:
        """Read what ``save`` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(*(arrays[name] for name in cls.__slots__))

    def save(self, path: Path) -> None:
        """Write to an ``.npz`` file."""
        np.savez(path, **{name: getattr(self, name) for name in self.__slots__})
