"""Which parameters have a gradient in an average, at any member that counts: ``find_unused_parameters``.

A tensor of flags is averaged with the gradients, as the last of them. Where its average is zero, no member that counts has a
gradient, and there is none afterwards; without this it would become zero, which optimizers with momentum apply as well.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


class Used:
    """The flags of one model. A member's flag says that it has a gradient, however it came there: of this backward, of one
    before it, or zeros.

    What all members end with follows from the flags' average and the gradients' alone, so they end with the same: the average,
    or None. Nothing depends on what a member has of its own: one that joined has no gradients, where others kept zeros; one of
    weight 0 may have some that nobody counts. Whether it counts is known only at the end of a call: a filler of the sampler or
    a member that gets the state within the call does not.
    """

    def __init__(self) -> None:
        """Of no parameters yet."""
        self._flags = nn.Parameter(torch.zeros(0, dtype=torch.float32, device="cpu"))

    def flags(self, count: int) -> nn.Parameter:
        """The parameter whose gradient are the flags of that many trained parameters; the same until the count changes."""
        if self._flags.numel() != count:
            self._flags = nn.Parameter(torch.zeros(count, dtype=torch.float64, device="cpu"))  # never compressed
        return self._flags

    def enter(self, pairs: Iterable[tuple[int, nn.Parameter]]) -> None:
        """Before an average: set the flags. ``pairs``: the trained parameters with their numbers."""
        found = [parameter.grad is not None for _, parameter in pairs]
        self._flags.grad = torch.tensor(found, dtype=torch.float64, device="cpu")

    def leave(self, pairs: Iterable[tuple[int, nn.Parameter]]) -> None:
        """After an average that has a result: drop the gradients that are of no member."""
        assert self._flags.grad is not None
        for (_, parameter), by_any in zip(pairs, self._flags.grad.tolist(), strict=True):
            if not by_any:
                parameter.grad = None
