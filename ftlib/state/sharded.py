"""The state of modules and optimizers whose parameters are DTensors: of each the part that is in this process."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from ..common.local_parts import is_sharded, like, local_part, local_parts
from .notes import labelled
from .parts import Stateful


def _sharded(item: object) -> bool:
    """True for a module or an optimizer of DTensors."""
    if isinstance(item, Optimizer):
        return any(is_sharded(parameter) for group in item.param_groups for parameter in group["params"])
    return isinstance(item, Module) and any(map(is_sharded, item.parameters()))


def state_of(item: Stateful) -> Any:
    """The object's state; of DTensors the parts that are here, as the other members of the same shard have them."""
    state = item.state_dict()
    if not _sharded(item):
        return state
    parts = local_parts(state)
    return labelled(parts, versions) if (versions := getattr(state, "_metadata", None)) is not None else parts


def fitting(item: Stateful, state: Any) -> Any:
    """The inverse of ``state_of``: ``state`` with DTensors where the object has some."""
    if not _sharded(item) or not isinstance(state, dict):
        return state
    if isinstance(item, Module):
        own = item.state_dict()
        return {key: like(own[key], value) if is_sharded(own.get(key)) else value for key, value in state.items()}
    assert isinstance(item, Optimizer)
    parameters = dict(enumerate(parameter for group in item.param_groups for parameter in group["params"]))
    fitted = {key: _like_parameter(parameters.get(key), values) for key, values in state.get("state", {}).items()}
    return {**state, "state": fitted}


def _like_parameter(parameter: Any, values: Any) -> Any:
    """What an optimizer keeps of one parameter: tensors of the shape of its local part are sharded as it is."""
    if not is_sharded(parameter) or not isinstance(values, dict):
        return values
    shape = local_part(parameter.detach()).shape
    alike = {name for name, value in values.items() if isinstance(value, torch.Tensor) and value.shape == shape}
    return {name: like(parameter, value) if name in alike else value for name, value in values.items()}
