"""``OptimizerWrapper``: an optimizer whose ``zero_grad`` begins a step of the manager, and whose ``step`` ends it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from ..errors import ConfigError
from .manager import Manager

__all__ = ["OptimizerWrapper"]


class OptimizerWrapper(Optimizer):
    """Steps the optimizer inside only where all replicas do: see ``Manager.should_commit``."""

    def __init__(self, manager: Manager, optim: Optimizer) -> None:
        """``optim``: the one inside, which keeps the parameters and the state."""
        self.optim = optim
        self.manager = manager

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """See torch's."""
        self.optim.add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See torch's."""
        self.optim.load_state_dict(state_dict)

    def state_dict(self) -> dict[str, Any]:
        """See torch's."""
        return self.optim.state_dict()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Begin a step; call it before the forward pass."""
        self.manager.start_quorum()
        self.optim.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """End the step; the parameters change if it is committed. ConfigError for a closure, which cannot be repeated."""
        if closure is not None:
            raise ConfigError("Optimizer.step takes no closure here: compute the loss and its gradients before it")
        if self.manager.should_commit():
            self.optim.step()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the optimizer inside."""
        return self.optim.param_groups

    @property
    def state(self) -> Mapping[torch.Tensor, Any]:  # type: ignore[override]
        """That of the optimizer inside."""
        return self.optim.state
