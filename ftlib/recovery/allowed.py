"""What a joiner may use while it gets the state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Allowed"]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a joiner may use. Bytes."""

    patience: float
    """Seconds for which the others may have to wait for one thing."""
    pending: int
    """Of averages that wait to be replayed; beyond it the others wait."""
    live: bool = True
    """Whether to follow at all."""
