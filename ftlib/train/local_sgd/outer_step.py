"""One step of an outer optimizer, which is taken back where it would leave inf or nan.

An average may be finite, and the step with it may not: a large rate, or a momentum that grows. Weights and optimizer are equal
at all members with one shard, and so is the average: so these find the same. Those with another shard may not.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from .outer import Assign
from .room import Room

_SETTINGS_ONLY = "params"
"""The key of a parameter group that is no setting."""


class OuterStep:
    """Steps the optimizers of one model, one at a time. Used by the training thread."""

    def __init__(self) -> None:
        """It keeps memory for copies of one fragment's weights, and of its optimizer's state."""
        self._room = Room()
        self._before: _Before | None = None
        """What the newest step has changed; None if that cannot go wrong."""

    @property
    def may_fail(self) -> bool:
        """Whether the newest step could have left inf or nan."""
        return self._before is not None

    def make(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> bool:
        """Step the ``parameters``, which have gradients, while no others of the optimizer have. False if weights or state hold
        an inf or a nan now that they did not hold before: then ``undo`` it.
        """
        self._before = None
        if isinstance(optimizer, Assign):  # the new weights are the average, which was found to be finite
            optimizer.step()
            return True
        with torch.no_grad():
            self._before = before = _Before(optimizer, parameters, self._room)
        optimizer.step()
        with torch.no_grad():
            return before.stays_sound()

    def undo(self) -> None:
        """All is as it was before the newest step."""
        before, self._before = self._before, None
        if before is not None:
            with torch.no_grad():
                before.restore()


class _Before:
    """What an optimizer and its parameters were before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], room: Room) -> None:
        self._optimizer = optimizer
        self._parameters = list(parameters)
        self._settings = [
            {name: _kept(value) for name, value in group.items() if name != _SETTINGS_ONLY} for group in optimizer.param_groups
        ]
        self._state = {parameter: dict(optimizer.state[parameter]) for parameter in parameters if parameter in optimizer.state}
        tensors = [parameter.detach() for parameter in parameters] + [
            value for state in self._state.values() for value in state.values() if isinstance(value, torch.Tensor)
        ]
        copies = room.like(tensors)
        torch._foreach_copy_(copies, tensors)
        self._copies = list(zip(tensors, copies, strict=True))
        self._others = {
            parameter: {name: copy.deepcopy(value) for name, value in state.items() if not isinstance(value, torch.Tensor)}
            for parameter, state in self._state.items()
        }

    def stays_sound(self) -> bool:
        """True if nothing holds an inf or a nan now, but what held one before."""
        now: list[torch.Tensor] = [parameter.detach() for parameter in self._parameters]
        for parameter in self._parameters:
            state = self._optimizer.state.get(parameter, {})
            now += [value for value in state.values() if isinstance(value, torch.Tensor)]
        spoilt = {id(copied) for copied in _unsound(copied for _, copied in self._copies)} if (bad := _unsound(now)) else set()
        return all(any(_same(tensor, held) and id(copied) in spoilt for held, copied in self._copies) for tensor in bad)

    def restore(self) -> None:
        """Undo the step."""
        for tensor, copied in self._copies:
            tensor.copy_(copied)
        for parameter in self._parameters:
            if parameter not in self._state:
                self._optimizer.state.pop(parameter, None)
                continue
            state = self._optimizer.state[parameter]
            state.clear()
            state.update(self._state[parameter])
            state.update(self._others[parameter])
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            group.update(settings)


def _unsound(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those that hold an inf or a nan."""
    found = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not found:
        return []
    largest = torch._foreach_norm(found, ord=float("inf"))  # noqa: SLF001 - one pass, and the optimizers use it
    return [tensor for tensor, norm in zip(found, largest, strict=True) if not norm.isfinite()]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
