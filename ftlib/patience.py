"""How long something has been waited for, and when to say so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["WARN_AFTER", "Patience"]

WARN_AFTER = 10.0
"""Seconds of waiting after which a warning names who is waited for; again each time it doubles."""


@dataclass(slots=True)
class Patience:
    """That of one call. ``deadline``: on the clock ``now``, in seconds."""

    deadline: float
    now: Callable[[], float]
    began: float = field(init=False)
    warn_at: float = WARN_AFTER

    def __post_init__(self) -> None:
        self.began = self.now()

    def due(self) -> float | None:
        """Seconds waited if a warning is due now."""
        waited = self.now() - self.began
        if waited < self.warn_at:
            return None
        self.warn_at *= 2
        return waited
