"""Objects that wrap others, as an optimizer that clips wraps one that does not: what is registered in place of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch
from torch.optim import Optimizer

from ..errors import ConfigError


@runtime_checkable
class Stateful(Protocol):
    """Modules, optimizers, schedulers, samplers."""

    def state_dict(self) -> Any:
        """The state as a tree (see ``state``)."""

    def load_state_dict(self, state: Any) -> Any:
        """Take over such a tree."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a composite object is registered as."""

    wrapped: Stateful
    """Registered in the place of the composite."""
    others: Mapping[str, Stateful | Sequence[Stateful]] = field(default_factory=lambda: MappingProxyType({}))
    """What the composite has besides, by role: one object or several."""
    apply: Callable[[], object] | None = None
    """Where ``wrapped`` is an optimizer: applies the gradients in its parameters. None: that is just its ``step``."""
    private: Mapping[str, Stateful] = field(default_factory=lambda: MappingProxyType({}))
    """What it has that differs between members, by name."""


@runtime_checkable
class Composite(Protocol):
    """An object whose state is that of others, among them one that it wraps."""

    def registered_parts(self) -> Parts:
        """What is registered in its place; the same objects every time."""


def listed_objects(role: str, value: object) -> list[Stateful]:
    """What a program registered as ``role``, one object or a sequence, as a list. ConfigError if one has no state."""
    listed: list[Stateful] = []
    for item in value if isinstance(value, Sequence) and not isinstance(value, Stateful) else [value]:
        if not isinstance(item, Stateful):
            raise ConfigError(f"{role}={type(item).__name__} has no state_dict and load_state_dict: it cannot be registered")
        listed.append(item)
    return listed


def load_into(role: str, load: Callable[[Any], Any], state: object) -> None:
    """``load(state)``. ConfigError if the state does not fit what is registered as ``role``."""
    try:
        load(state)
    except Exception as error:  # the program's own code: whatever it raises, the two states do not fit
        text = " ".join(str(error).split())
        raise ConfigError(f"{role}: the job's state does not fit this worker's ({text}): build the same everywhere") from error


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """The parameters in the order in which ``state_dict`` numbers them."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def mapping(value: object) -> Mapping[Any, Any]:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
