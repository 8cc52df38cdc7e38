"""Objects that wrap others, as an optimizer that clips wraps one that does not: what is registered in place of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

__all__ = ["Composite", "Parts", "Stateful"]


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


@runtime_checkable
class Composite(Protocol):
    """An object whose state is that of others, among them one that it wraps."""

    def registered_parts(self) -> Parts:
        """What is registered in its place; the same objects every time."""
