"""Memory for clipped gradients: that of the gradients which were averaged, as nobody needs them any more."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..clipping import GradientCopies


class FormerGradients(GradientCopies):
    """The gradients that autograd made, if they have the form that is asked for; else memory of its own, which is kept."""

    def __init__(self) -> None:
        super().__init__()
        self._former: Mapping[int, torch.Tensor] = {}

    def of(self, former: Mapping[int, torch.Tensor]) -> FormerGradients:
        """Take these, by the position of the parameter, in place of earlier ones. Returns itself."""
        self._former = former
        return self

    def room(self, position: int, gradient: torch.Tensor) -> torch.Tensor:
        """See ``GradientCopies``."""
        found = self._former.get(position)
        if found is None or found._base is not None or _form(found) != _form(gradient):  # noqa: SLF001 - a view of what?
            return super().room(position, gradient)
        return found


def _form(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device
