"""The order of a tensor's dimensions in memory. Channels-last and transposed tensors have another one than row-major."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def memory_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a ``tensor`` without gaps in memory, the outermost in memory first.

    Empty if that is row-major, or if there is no such order, as in slices and expanded tensors.
    """
    if tensor.is_contiguous():
        return ()
    shape, strides = tensor.shape, tensor.stride()
    # where a size of 1 makes strides equal, as torch's own layouts have them
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], shape[dim] == 1))
    return tuple(order) if tensor.permute(order).is_contiguous() else ()


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with its dimensions in ``memory_order``: a view that is contiguous if ``tensor`` has no gaps."""
    order = memory_order(tensor)
    return tensor.permute(order) if order else tensor


def shaped(row: torch.Tensor, shape: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    """The contiguous ``row`` as a tensor of ``shape``, whose dimensions are in ``order`` in memory; empty: row-major."""
    if not order:
        return row.view(tuple(shape))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return row.view([shape[dim] for dim in order]).permute(inverse)
