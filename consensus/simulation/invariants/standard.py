"""Which invariants every world checks."""

from __future__ import annotations

from .activation import Activation
from .ballots import Ballots
from .flush import Flush
from .invariant import Invariant
from .succession import Succession
from .uniqueness import Uniqueness

__all__ = ["STANDARD"]

STANDARD: tuple[type[Invariant], ...] = (Ballots, Uniqueness, Succession, Activation, Flush)
"""In the order in which they are asked: the first that sees a violation tells it."""
