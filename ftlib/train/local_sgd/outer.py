"""What a sync does to the global weights: the outer optimizers, and what each worker contributes to the average for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import ConfigError

Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
Outer = Factory | torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
"""What programs pass as ``outer=``."""

Contribution = Callable[[list[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]], None]
"""Writes to the first list what a worker with these global and these local weights contributes."""


def pseudo_gradients(into: list[torch.Tensor], weights: Sequence[torch.Tensor], local: Sequence[torch.Tensor]) -> None:
    """Global minus local weights: an optimizer that steps against it goes where the worker went."""
    torch._foreach_copy_(into, list(weights))
    torch._foreach_sub_(into, list(local))


def weights_themselves(into: list[torch.Tensor], _weights: Sequence[torch.Tensor], local: Sequence[torch.Tensor]) -> None:
    """The local weights."""
    torch._foreach_copy_(into, list(local))


class Assign(torch.optim.Optimizer):
    """Its step sets parameters to their gradients: the average of weights is the new weights."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override] # noqa: ARG002 - as all optimizers take it
        """Take over the gradients of those that have one."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.copy_(parameter.grad)


def outer_optimizers(
    outer: Outer, fragments: Sequence[list[nn.Parameter]], replaced: Mapping[int, nn.Parameter]
) -> list[torch.optim.Optimizer]:
    """The optimizer of each fragment's global parameters; one may serve several fragments.

    ``replaced``: the global parameters by the ``id`` of the model's. An optimizer that was made for the model's parameters
    steps the global ones from now on. ConfigError if ``outer`` is none of what it may be.
    """
    if isinstance(outer, torch.optim.Optimizer):
        found = [_moved(outer, replaced)] * len(fragments)
    elif callable(outer):
        found = [_made(outer, parameters) for parameters in fragments]
    elif isinstance(outer, Sequence) and len(outer) == len(fragments):
        moved = {id(each): _moved(each, replaced) for each in {id(each): each for each in outer}.values()}
        found = [moved[id(each)] for each in outer]
    else:
        raise ConfigError(
            "outer= takes a function that makes an optimizer of a list of parameters, an optimizer of the model's parameters, "
            f"or a list with one for each of the {len(fragments)} fragments"
        )
    for number, (optimizer, parameters) in enumerate(zip(found, fragments, strict=True)):
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        if not all(id(parameter) in stepped for parameter in parameters):
            raise ConfigError(f"outer=: the {type(optimizer).__name__} of fragment {number} lacks some of its parameters")
    return found


def _made(factory: Factory, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    made = factory(parameters)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(f"outer= made a {type(made).__name__} of the parameters, not an optimizer of torch.optim")
    return made


def _moved(optimizer: Any, replaced: Mapping[int, nn.Parameter]) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"outer= takes optimizers of torch.optim, not a {type(optimizer).__name__}")
    if any(optimizer.state.values()):
        raise ConfigError("outer=: this optimizer has stepped the model's own parameters already: give a new one")
    for group in optimizer.param_groups:
        if not all(id(parameter) in replaced for parameter in group["params"]):
            raise ConfigError(
                f"outer=: the {type(optimizer).__name__} has parameters that are none of the model's trained ones: make it of "
                "model.parameters(), or pass a function that makes it"
            )
        group["params"] = [replaced[id(parameter)] for parameter in group["params"]]
    return optimizer
