"""The part of a sharded tensor (a DTensor) that is in this process: what is averaged, registered and sent of it."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_sharded(tensor: object) -> bool:
    """True for a DTensor."""
    # Without the module there are none; nor while another thread imports it, as the writer of the first checkpoint does.
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(tensor, kind)


def local_part(tensor: Any) -> torch.Tensor:
    """The tensor itself; of a DTensor its local part, on the same memory."""
    part: torch.Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


def gradient_of(parameter: Any) -> Any:
    """The gradient of a DTensor, laid out over the mesh as the parameter is; None if there is none.

    Backward may leave another layout: of a replicated parameter that was multiplied by sharded activations, each process has
    a part of the sum (``Partial``). Members average local parts, and one that has no gradient could not know what the others'
    parts are of. So the processes of the mesh put it together before, which an optimizer would make them do after it.
    """
    gradient = parameter.grad
    if gradient is None or gradient.placements == parameter.placements:
        return gradient
    with torch.no_grad():
        return gradient.redistribute(placements=parameter.placements)


def local_parts(tree: Any) -> Any:
    """``tree`` of dicts, lists and tuples, with local parts in the place of DTensors."""
    if isinstance(tree, dict):
        return {key: local_parts(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        parts = [local_parts(value) for value in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return local_part(tree.detach()) if is_sharded(tree) else tree


def like(tensor: Any, part: torch.Tensor) -> torch.Tensor:
    """``part`` as the local part of a DTensor like ``tensor``."""
    made: torch.Tensor = sys.modules["torch.distributed.tensor"].DTensor.from_local(
        part, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return made
