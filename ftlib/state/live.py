"""What is registered, as live tensors: parameters and who steps them. ``state_dict`` gives others that share their memory."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .codec import DTYPES
from .registry import Registered

Place = tuple[str, int]
"""A registered object: its role, and its index in that role."""
_SEPARATE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
)
"""Optimizers whose step makes of a parameter what only its gradient and its own state say, and leaves those without alone."""


def stepping(registered: Registered) -> list[Optimizer]:
    """The registered optimizers of torch that tell of their steps (``register_step_pre_hook``)."""
    return list(optimizers_of(registered).values())


def separable(registered: Registered) -> bool:
    """Whether applying an average to some parameters is the same as applying it to all, as far as these are concerned."""
    optimizers = optimizers_of(registered).values()
    found = {id(p) for p in by_memory(registered).values() if plain(p)}
    known = all(type(each) in _SEPARATE and all(id(p) in found for p in parameters_of(each)) for each in optimizers)
    return registered.apply is None and known


def plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes are all there is to it, and its changes are counted."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and tensor.dtype in DTYPES.values()
        and tensor.numel() > 0
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference() or tensor.is_meta)
    )


def optimizers_of(registered: Registered) -> dict[Place, Optimizer]:
    """The registered optimizers that run hooks before they step."""
    # torch's constructor marks the method; a class that does not call it runs no hooks
    return {place: item for place, item in registered.of(Optimizer).items() if getattr(type(item).step, "hooked", False)}


def by_memory(registered: Registered) -> dict[Hashable, nn.Parameter]:
    """The registered modules' parameters. ``state_dict`` gives other tensors that share their memory."""
    return {memory(p): p for module in registered.of(nn.Module).values() for p in module.parameters() if _dense(p)}


def _dense(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.numel() > 0


def memory(tensor: torch.Tensor) -> Hashable:
    """The same for tensors that are the same memory in the same shape."""
    if not _dense(tensor) or tensor.is_meta:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def nbytes_of_parameters(registered: Registered) -> int:
    """Bytes of the registered modules' parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in by_memory(registered).values())


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """In the order in which ``state_dict`` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def mapping(value: object) -> Mapping[Any, Any]:
    """``value``, or nothing where it is none."""
    return value if isinstance(value, Mapping) else {}
