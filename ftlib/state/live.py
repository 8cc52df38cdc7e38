"""The registered state as live tensors: parameters, and the optimizers that step them.

``state_dict`` returns other tensor objects, which share their memory.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import nn
from torch.optim import Optimizer

from .codec import DTYPES
from .parts import parameters_of
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
"""Optimizers that update each parameter from its own gradient and state alone, and skip parameters without a gradient."""


def stepping(registered: Registered) -> list[Optimizer]:
    """The registered torch optimizers whose steps can be observed (``register_step_pre_hook``)."""
    return list(optimizers_of(registered).values())


def separable(registered: Registered) -> bool:
    """True if applying an average to some parameters changes those exactly as applying it to all parameters would."""
    optimizers = optimizers_of(registered).values()
    found = {id(p) for p in by_memory(registered).values() if plain(p)}
    known = all(type(each) in _SEPARATE and all(id(p) in found for p in parameters_of(each)) for each in optimizers)
    plainly = not any(registered.applying(each) for each in optimizers)  # a norm, for one, is of all gradients together
    return registered.apply is None and known and plainly


def plain(tensor: torch.Tensor) -> bool:
    """True if the tensor is fully described by its bytes, and torch counts its changes."""
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
    """The registered modules' parameters, by ``memory``. ``state_dict`` returns other tensors that share that memory."""
    return {memory(p): p for module in registered.of(nn.Module).values() for p in module.parameters() if _dense(p)}


def _dense(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided and tensor.numel() > 0


def memory(tensor: torch.Tensor) -> Hashable:
    """A key that is equal for tensors on the same memory with the same shape, strides and dtype."""
    if not _dense(tensor) or tensor.is_meta:
        return id(tensor)
    return tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def nbytes_of_parameters(registered: Registered) -> int:
    """Bytes of the registered modules' parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in by_memory(registered).values())
