"""The models that are trained, each with an input of its own kind. Layers stand in registration order, as in any program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

FORWARD, BACKWARD = 0.010, 0.020
"""Seconds that a layer takes elsewhere."""
ODD, EVEN = 31, 32


class Elsewhere(torch.autograd.Function):
    """The time that a layer takes on an accelerator, in which the processor rests."""

    @staticmethod
    def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(FORWARD)  # as an accelerator would compute
        return tensor.clone()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        time.sleep(BACKWARD)  # as an accelerator would compute
        return gradient


class Timed(nn.Module):
    """A layer's time."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return Elsewhere.apply(tensor)  # type: ignore[no-any-return,no-untyped-call]


class Pieces(nn.Module):
    """Many parameters of a few elements each, and next to no computing."""

    def __init__(self, count: int, elements: int) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(torch.ones(elements) for _ in range(count))

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(self.pieces)) * tensor


class Kind(NamedTuple):
    """A model, and what goes into it."""

    text: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Of the input of one worker."""


def _perceptron(width: int, depth: int, other: Callable[[], nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), other())])


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(640, 8, dim_feedforward=2560, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)


MODELS = {
    "8x512": Kind("8 x 512 (8.4 MB)", lambda: _perceptron(512, 8), (256, 512)),
    "10x1000": Kind("10 x 1000 (40 MB)", lambda: _perceptron(1000, 10), (128, 1000)),
    "60M": Kind("a transformer of 59 M parameters (236 MB)", _transformer, (2, 16, 640)),
    "4KB": Kind("one layer (4 KB)", lambda: nn.Linear(ODD, EVEN), (1, ODD)),
    "timed": Kind("8 x 512, computed elsewhere", lambda: _perceptron(512, 8, Timed), (1, 512)),
    "one": Kind("one parameter of 1,000 elements", lambda: Pieces(1, 1000), (1000,)),
    "thousand": Kind("1,000 parameters of one element", lambda: Pieces(1000, 1), (1000,)),
}
