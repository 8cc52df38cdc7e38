"""Results as gradients: ``.grad`` becomes a view of the slot that holds the average, instead of a copy.

So a step saves one pass over all gradients. The gradients that backward made stay as they are; whoever holds the call decides
how long. A survivor that needs the results gets them only while the program has left them alone (see ``Results.changed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from .layout import Bucket, Piece
from .staging import Slot


class Inputs:
    """The gradients that backward made, kept until the next backward begins.

    If they were dropped when others took their place, their memory would go back to the system, and come again page by page.
    """

    def __init__(self) -> None:
        self._kept: list[torch.Tensor | None] = []
        self._hook: RemovableHandle | None = None

    def keep(self, owner: torch.Tensor, gradients: Sequence[torch.Tensor | None]) -> None:
        """Keep ``gradients`` until ``owner``, a parameter, gets the next one."""
        if self._hook is not None:
            self._hook.remove()
        self._kept = list(gradients)
        self._hook = owner.register_post_accumulate_grad_hook(self._drop)  # type: ignore[no-untyped-call]

    def _drop(self, _owner: torch.Tensor) -> None:
        self._kept.clear()


class Shown(Protocol):
    """The results that are presented (see ``Results``)."""

    slots: tuple[Slot, ...]

    def show(self, slots: Sequence[Slot]) -> None:
        """The program is about to see these slots."""


def present(
    results: Shown, owners: Sequence[torch.Tensor], copy: Callable[[Piece, torch.Tensor], None], *, checked: bool = False
) -> None:
    """Point the gradients of ``owners`` to the averages in ``results``; those on devices are left to the caller.

    ``copy``: writes the average of a piece to the gradient that is there. It gets what cannot be a view: gradients of another
    dtype or memory format than the wire's, and parts of tensors whose slots are not side by side. ``checked``: True if the
    results were looked at for inf and nan.
    """
    shown: list[Slot] = []
    gradients: list[tuple[torch.Tensor, torch.Tensor]] = []
    for slot in results.slots:
        bucket = slot.bucket
        tensors = zip(bucket.indices, slot.views, strict=True) if bucket.whole else _whole(slot)
        found = [(owner, view) for index, view in tensors if fits(owner := owners[index], bucket)]
        if found:
            shown.append(slot)
            gradients += found
            slot.show([owner for owner, _ in found], span(slot.host), checked=checked)
    for index, parts in groupby(_parts(results.slots), key=lambda part: part[1].index):
        slots = [slot for slot, _ in parts]
        if (whole := joined(slots, owners[index])) is not None:
            shown += slots
            gradients.append((owners[index], whole))
            for slot in slots:
                slot.show((owners[index],), span(whole), checked=checked)
    results.show(shown)  # first: a change right after must be noticed
    for owner, view in gradients:
        # A tensor of the program's own, which may give it other memory (``grad.data = ...``, ``module.to``): the slot's views
        # stay where they are.
        owner.grad = view.view_as(view)
    if len(gradients) < len(owners):
        taken = {id(owner) for owner, _ in gradients}
        for slot in results.slots:
            for piece, view in zip(slot.bucket.pieces, slot.views, strict=True):
                if id(owners[piece.index]) not in taken and not slot.bucket.place:
                    copy(piece, view)


def span(row: torch.Tensor) -> tuple[int, int]:
    """The addresses of a contiguous tensor."""
    return row.data_ptr(), row.data_ptr() + row.nbytes


def fits(owner: torch.Tensor, bucket: Bucket) -> bool:
    """True if a view of the bucket's data can be the gradient of ``owner``."""
    return type(owner) is torch.nn.Parameter and owner.dtype is bucket.dtype and owner.is_contiguous() and not bucket.place


def joined(slots: Sequence[Slot], owner: torch.Tensor) -> torch.Tensor | None:
    """The data of consecutive slots as the gradient of ``owner``; None where that is not possible."""
    if not fits(owner, slots[0].bucket):
        return None
    first = slots[0].host
    address = first.data_ptr()
    for slot in slots:
        if slot.host.data_ptr() != address or slot.host.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            return None
        address += slot.host.nbytes
    return first.as_strided(owner.shape, owner.stride(), first.storage_offset())


def _whole(slot: Slot) -> Iterator[tuple[int, torch.Tensor]]:
    """The whole tensors in a slot that has parts of tensors as well, by index."""
    both = zip(slot.bucket.pieces, slot.views, strict=True)
    return ((piece.index, view) for piece, view in both if piece.shape is not None)


def _parts(slots: Sequence[Slot]) -> list[tuple[Slot, Piece]]:
    """The pieces that are parts of tensors, in order."""
    split = [slot for slot in slots if not slot.bucket.whole]
    return [(slot, piece) for slot in split for piece in slot.bucket.pieces if piece.shape is None]
