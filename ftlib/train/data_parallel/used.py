"""Which parameters were used in a step, by this member and by any: ``find_unused_parameters``.

A tensor of flags is averaged with the gradients, as the last of them. Where its average is zero, no member that counts used the
parameter, and the gradient stays what it was; without this it would become zero, which optimizers with momentum apply as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

__all__ = ["Used"]


class Used:
    """The flags of one model. A member's flag says that it used a parameter since the last average, also in ``no_sync``.

    The flags of a member of weight 0 count as little as its gradients do. It is told by the average what the others find, and
    takes back what it has added to gradients that nobody else used. Whether it counts is known only at the end of a call: a
    filler of the sampler or a member that gets the state within the call does not.
    """

    def __init__(self, count: int) -> None:
        """``count``: the number of parameters, trained or not."""
        self.here = [False] * count
        """Set by hooks, outside of averages too."""
        self._flags = nn.Parameter(torch.zeros(0, dtype=torch.float32, device="cpu"))
        self._before: dict[int, torch.Tensor] = {}
        """By number: copies of the gradients that were there before this member used the parameter; none for those of None."""

    def flags(self, count: int) -> nn.Parameter:
        """The parameter whose gradient are the flags of that many trained parameters; the same until the count changes."""
        if self._flags.numel() != count:
            self._flags = nn.Parameter(torch.zeros(count, dtype=torch.float64, device="cpu"))  # never compressed
        return self._flags

    def clear(self) -> None:
        """Nothing has been used yet: the step begins, or has ended."""
        self.here[:] = [False] * len(self.here)
        self._before.clear()

    def begin(self, pairs: Iterable[tuple[int, nn.Parameter]], reached: int | None = None) -> None:
        """A backward begins: keep the gradients of parameters that have not been used. A gradient of None is nobody's: what was
        accumulated before has been dropped, after a failed average, say. ``pairs``: the trained parameters with their numbers.
        ``reached``: the number of one whose gradient is there already, so that it is not known what it was.
        """
        with torch.no_grad():
            for number, parameter in pairs:
                gradient = parameter.grad
                if gradient is None:
                    self.here[number] = False
                if not self.here[number]:
                    self._before.pop(number, None)
                    if gradient is not None and number != reached:
                        self._before[number] = gradient.clone()

    def enter(self, numbers: Sequence[int]) -> None:
        """Before an average of these parameters: set the flags."""
        self._flags.grad = torch.tensor([self.here[number] for number in numbers], dtype=torch.float64, device="cpu")

    def leave(self, pairs: Iterable[tuple[int, nn.Parameter]]) -> None:
        """After an average that has a result: restore the gradients of parameters that no member used."""
        assert self._flags.grad is not None
        for (number, parameter), by_any in zip(pairs, self._flags.grad.tolist(), strict=True):
            if not by_any:
                parameter.grad = self._before.get(number)
        self.clear()
