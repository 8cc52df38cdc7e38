"""The norms of averaged gradients, of one reading pass with the look for inf and nan.

They are those of the whole tensors, one by one, by the function that clipping would call. So it makes no difference to the bits
whether a member has them from here, or computes them again, as one does that replays the averages it missed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .staging import Slot


class Norms:
    """The norms of some gradients, each known as long as that gradient is as the average has left it."""

    def __init__(self, slots: Sequence[Slot], owners: Sequence[torch.Tensor], *, guarded: bool) -> None:
        """``slots``: the averages, which the gradients of ``owners`` are views or copies of. ``guarded``: they are views, which
        the program may have changed in ways that no version shows; ``of`` then looks at samples.
        """
        self._known: dict[int, tuple[torch.Tensor, int, torch.Tensor]] = {}
        self._samples = [(slot, slot.sample()) for slot in slots if slot.norms] if guarded else []
        for slot in slots:
            for piece, norm in zip(slot.bucket.pieces, slot.norms, strict=False):  # there are none of parts of tensors
                owner = owners[piece.index]
                gradient = owner.grad
                if type(gradient) is torch.Tensor and gradient.dtype is slot.bucket.dtype and gradient.is_contiguous():
                    self._known[id(owner)] = gradient, gradient._version, norm  # noqa: SLF001 - the only way to ask

    def of(self, owners: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The norm of each owner's gradient; None if it is not known."""
        if not self._known or any(not torch.equal(slot.sample(), sample) for slot, sample in self._samples):
            return [None] * len(owners)
        found: list[torch.Tensor | None] = []
        for owner in owners:
            gradient, version, norm = self._known.get(id(owner), _NOTHING)
            found.append(norm if gradient is not None and owner.grad is gradient and gradient._version == version else None)  # noqa: SLF001
        return found


def together(norms: Sequence[Norms], owners: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The norm of each owner's gradient, where one of ``norms`` knows it; none at all where there are none."""
    rows = [each.of(owners) for each in norms]
    return [next((norm for norm in column if norm is not None), None) for column in zip(*rows, strict=True)]


_NOTHING = None, 0, None
NO_NORMS = Norms((), (), guarded=False)
"""Of a call that has computed none."""
