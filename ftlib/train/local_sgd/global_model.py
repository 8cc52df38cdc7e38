"""The weights that all workers share, beside those that this worker trains.

Global weights change in syncs only, at all members alike. Local ones are a worker's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import ConfigError
from ...state.notes import labelled
from .fragments import Named
from .outer import Contribution
from .room import Room


class GlobalModel:
    """A copy of a model's trained parameters, by fragment, and as a module that is registered as the job's state."""

    def __init__(self, fragments: Sequence[Named], device: torch.device | str, contribution: Contribution) -> None:
        """``device``: where the copies are. ``contribution``: what a worker gives to an average. ConfigError if there is no
        such device.
        """
        self.weights = Weights()
        """All copies under the names that they have in the model."""
        self.replaced: dict[int, nn.Parameter] = {}
        """The copies by the ``id`` of the model's parameters."""
        room, place = Room(), _usable(device)
        self.parts = tuple(self._fragment(named, place, contribution, room) for named in fragments)

    def _fragment(self, named: Named, device: torch.device, contribution: Contribution, room: Room) -> Fragment:
        module, local, copies = Weights(), [], []
        for name, parameter in named:
            copy = nn.Parameter(local_part(parameter).to(device, copy=True, memory_format=torch.contiguous_format))
            self.replaced[id(parameter)] = copy
            _put(self.weights, name, copy)
            _put(module, name, copy)
            local.append(parameter)
            copies.append(copy)
        return Fragment(module, local, copies, contribution, room)


class Weights(nn.Module):
    """Parameters under the names of a model's, which may be any: so this has nothing of its own that they could hide."""

    def forward(self, *_: Any) -> Any:
        """It has weights only."""
        raise NotImplementedError("these are the weights that the workers share: call the model itself")


def _usable(device: torch.device | str) -> torch.device:
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError) as error:  # torch without CUDA asserts
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"backup_device={device!r} cannot be used: give 'cpu', or a device that this process has ({why})"
        ) from None
    return found


def _put(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register ``parameter`` in ``module`` under the dotted ``name``."""
    *path, last = name.split(".")
    for each in path:
        inside = module._modules.get(each)  # noqa: SLF001 - an attribute of this name would be taken for a submodule
        if inside is None:
            inside = nn.Module()
            setattr(module, each, inside)  # as models do it: add_module refuses names that nn.Module has as well
        module = inside
    module.register_parameter(last, parameter)


class Fragment:
    """The parameters that are averaged together. Used by the training thread, without autograd."""

    def __init__(
        self,
        module: nn.Module,
        local: Sequence[nn.Parameter],
        parameters: Sequence[nn.Parameter],
        contribution: Contribution,
        room: Room,
    ) -> None:
        """``module``: has the global ``parameters`` under their names. ``local``: the model's."""
        self.module = module
        self.parameters = list(parameters)
        self._local = list(local)
        self._contribution = contribution
        self._room = room

    def contribute(self) -> None:
        """Write what this worker gives to the average to the gradients of the global parameters."""
        gradients = self._room.like(self.parameters)
        local = [part.to(copy.device) for part, copy in zip(self._here(), self.parameters, strict=True)]
        self._contribution(gradients, self.parameters, local)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def clear(self) -> None:
        """The average is applied, or there is none."""
        for parameter in self.parameters:
            parameter.grad = None

    def merge(self, alpha: float) -> None:
        """Local weights become ``(1 - alpha) * global + alpha * local``."""
        if alpha == 1.0:
            return
        local = self._here()
        found = [copy.to(part.device) for copy, part in zip(self.parameters, local, strict=True)]
        if alpha == 0.0:
            torch._foreach_copy_(local, found)
        else:
            torch._foreach_lerp_(local, found, 1.0 - alpha)

    def _here(self) -> list[torch.Tensor]:
        return [local_part(parameter) for parameter in self._local]


class Remainder:
    """What a model has besides its trained parameters: buffers and frozen parameters, which nobody averages."""

    def __init__(self, model: nn.Module, trained: Iterable[str]) -> None:
        """``trained``: the names of the parameters that are left out, all of each."""
        self._model = model
        self._trained = frozenset(trained)

    def state_dict(self) -> dict[str, Any]:
        """By the names that they have in the model, with the versions of its modules."""
        state = self._model.state_dict()
        own = {name: value for name, value in state.items() if name not in self._trained}
        return labelled(own, getattr(state, "_metadata", None))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over such a state."""
        self._model.load_state_dict(state, strict=False)


def local_part(parameter: torch.Tensor) -> torch.Tensor:
    """The part of a parameter that is here: all of it, but of a DTensor its own shard."""
    detached = parameter.detach()
    take = getattr(detached, "to_local", None)
    part: torch.Tensor = detached if take is None else take()
    return part
