"""Which parameters were used in a step, by this member and by any: ``find_unused_parameters``.

A tensor of flags is averaged with the gradients, as the last of them. Where its average is zero, no member used the parameter,
and the gradient stays what it was; without this it would become zero, which optimizers with momentum apply as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["Used"]


class Used:
    """The flags of one model. A member's flag says that it used a parameter since the last average, also in ``no_sync``."""

    def __init__(self, count: int) -> None:
        """``count``: the number of parameters, trained or not."""
        self.here = [False] * count
        """Set by hooks, outside of averages too."""
        self._flags = nn.Parameter(torch.zeros(0, dtype=torch.float32, device="cpu"))
        self._before: list[tuple[nn.Parameter, torch.Tensor | None]] = []
        """Gradients of parameters that were not used here, as they were."""
        self._places: list[int] = []

    def flags(self, count: int) -> nn.Parameter:
        """The parameter whose gradient are the flags of that many trained parameters; the same until the count changes."""
        if self._flags.numel() != count:
            self._flags = nn.Parameter(torch.zeros(count, dtype=torch.float64, device="cpu"))  # never compressed
        return self._flags

    def enter(self, numbers: Sequence[int], owners: Sequence[nn.Parameter]) -> None:
        """Before an average of these parameters: set the flags, and keep what may have to stay."""
        used = [self.here[number] for number in numbers]
        self._flags.grad = torch.tensor(used, dtype=torch.float64, device="cpu")
        self._places = [place for place, flag in enumerate(used) if not flag]
        idle = [owners[place] for place in self._places]
        self._before = [(owner, None if owner.grad is None else owner.grad.clone()) for owner in idle]

    def leave(self, *, averaged: bool) -> None:
        """After the average: restore gradients of parameters that no member used."""
        before, self._before = self._before, []
        if not averaged:
            return
        self.here[:] = [False] * len(self.here)
        if not before or self._flags.grad is None:
            return
        by_any = self._flags.grad.tolist()
        for place, (owner, gradient) in zip(self._places, before, strict=True):
            if not by_any[place]:
                owner.grad = gradient
