"""From what a program hands over (a module, parameters, tensors, arrays) to the tensors of a call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from .bucket import Layout, lay_out
from .errors import ConfigError
from .frameworks.base import Framework

__all__ = ["Layouts", "Targets", "targets_of"]

_LAYOUTS_KEPT = 64


class Targets:
    """Tensors to reduce, in order. ``owners``: where a source is None, the parameter whose gradient will be created."""

    __slots__ = ("owners", "sources")

    def __init__(self, sources: list[torch.Tensor | None], owners: list[torch.Tensor]) -> None:
        self.sources = sources
        self.owners = owners


def targets_of(target: Any) -> Targets:
    """Gradients of a module or of parameters, else the tensors or arrays themselves. ConfigError for anything else."""
    if isinstance(target, torch.Tensor):
        owners = [target]
    elif isinstance(target, nn.Module):
        owners = [parameter for parameter in target.parameters() if parameter.requires_grad]
        if not owners:
            raise ConfigError(f"nothing to average: no parameter of this {type(target).__name__} has requires_grad=True")
        return Targets([parameter.grad for parameter in owners], list(owners))
    elif isinstance(target, np.ndarray):
        owners = [_of_array(target)]
    elif isinstance(target, Iterable) and not isinstance(target, (str, bytes)):
        owners = [_single(item) for item in target]
        if not owners and not isinstance(target, Sequence):
            raise ConfigError("nothing to average: an iterator serves one call; pass the model or a list of its parameters")
    else:
        raise ConfigError(f"expected a module, parameters, tensors or numpy arrays, not {type(target).__name__}")
    return Targets([owner.grad if isinstance(owner, nn.Parameter) else owner.detach() for owner in owners], owners)


def _single(item: Any) -> torch.Tensor:
    if isinstance(item, torch.Tensor):
        return item
    if isinstance(item, np.ndarray):
        return _of_array(item)
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], torch.Tensor):
        raise ConfigError("expected parameters, not pairs of name and parameter: pass model.parameters()")
    raise ConfigError(f"expected parameters, tensors or numpy arrays, found {type(item).__name__}")


def _of_array(array: np.ndarray[Any, Any]) -> torch.Tensor:
    if not array.flags.writeable:
        raise ConfigError("a numpy array is read-only: pass a writable one, it is averaged in place")
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a numpy array of {array.dtype} cannot be averaged: {error}") from None


class Layouts:
    """Layouts by what was asked for: in a steady run each is worked out and checked once."""

    def __init__(self, framework: Framework, bucket_bytes: int) -> None:
        self._framework = framework
        self._bucket_bytes = bucket_bytes
        self._known: OrderedDict[tuple[object, ...], Layout] = OrderedDict()

    def layout(self, kind: str, targets: Targets, op: str, *, mean: bool = False) -> Layout:
        """The layout of such a call. ConfigError naming the tensor that cannot take part (device, dtype, sparse)."""
        found = [owner if source is None else source for source, owner in zip(targets.sources, targets.owners, strict=True)]
        key = (kind, op, *((t.dtype, t.shape, t.layout, t.device) for t in found))
        layout = self._known.get(key)
        if layout is not None:
            return layout
        for index, tensor in enumerate(found):
            self._check(f"tensor {index} of {list(tensor.shape)}", tensor, mean=mean)
        layout = lay_out(kind, [(t.dtype, tuple(t.shape)) for t in found], op, self._bucket_bytes)
        self._known[key] = layout
        while len(self._known) > _LAYOUTS_KEPT:
            self._known.popitem(last=False)
        return layout

    def _check(self, name: str, tensor: torch.Tensor, *, mean: bool) -> None:
        if tensor.layout is not torch.strided:
            raise ConfigError(
                f"{name} is {tensor.layout}: only dense tensors can be reduced; use dense gradients (sparse=False)"
            )
        if mean and not tensor.dtype.is_floating_point:
            raise ConfigError(
                f"{name} is {tensor.dtype}: only floating-point tensors can be averaged; use op='SUM' or convert it"
            )
        try:
            self._framework.check(tensor)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
