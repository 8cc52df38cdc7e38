"""The training task: a small convolutional net on the digits. The same for workers and for the undisturbed run.

Everything random is a function of (seed, step): step 1,000 always has the same 64 images, shifted and with noise added in the
same way, however many workers share them.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from torch import nn

from ...common.host_copies import on_host
from .digits import Digits

BATCH = 64
"""Images in a step, of all workers together."""
_NOISE = 0.15
_RATE = 0.05
_RATE_HALVES_IN = 400
"""Steps after which the learning rate is half of ``_RATE``."""


def network(seed: int) -> nn.Module:
    """About 284,000 parameters, initialized by ``seed``. Input [n, 1, 8, 8], output [n, 10]."""
    torch.manual_seed(seed)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10)),
    )


def optimizer_for(model: nn.Module) -> torch.optim.SGD:
    """SGD with momentum, so that joiners have an optimizer state to get."""
    return torch.optim.SGD(model.parameters(), lr=_RATE, momentum=0.9, weight_decay=1e-4)


def set_rate(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Set the learning rate of this step. It does not depend on a last step, since the run ends when the schedule does."""
    for group in optimizer.param_groups:
        group["lr"] = _RATE / (1 + step / _RATE_HALVES_IN)


def global_batch(digits: Digits, seed: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [BATCH, 1, 8, 8] and labels [BATCH] of a step: drawn, shifted by up to a pixel, with noise."""
    draw = np.random.default_rng((seed, step))
    chosen = draw.permutation(len(digits.train_labels))[:BATCH]
    padded = np.pad(digits.train_images[chosen], ((0, 0), (1, 1), (1, 1)))
    down, right = draw.integers(0, 3, (2, BATCH, 1, 1))
    image, row, column = np.ogrid[:BATCH, :8, :8]
    shifted = padded[image, row + down, column + right]
    noisy = shifted + _NOISE * draw.standard_normal(shifted.shape, np.float32)
    return torch.from_numpy(noisy).unsqueeze(1), torch.from_numpy(digits.train_labels[chosen])


def correct(model: nn.Module, digits: Digits) -> int:
    """Return how many test images the model gets right."""
    with torch.no_grad():
        answers = model(torch.from_numpy(digits.test_images).unsqueeze(1)).argmax(1)
    return int((answers == torch.from_numpy(digits.test_labels)).sum())


def fingerprint(model: nn.Module) -> str:
    """Return 16 hex digits that are equal for two models if every bit of every parameter is equal."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in on_host(model.parameters()):
        bits: Any = parameter.detach().contiguous().numpy()
        digest.update(bits)
    return digest.hexdigest()
