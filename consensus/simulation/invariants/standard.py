"""Which invariants every world checks."""

from __future__ import annotations

from .activation import Activation
from .ballots import Ballots
from .bounds import Bounds
from .checkpoints import Checkpoints
from .choice import Choice
from .exclusion import Exclusion
from .flush import Flush
from .invariant import Invariant
from .laggards import Laggards
from .lifetimes import Lifetimes
from .liveness import Liveness
from .records import Records
from .replays import Replays
from .succession import Succession
from .trust import Trust
from .uniqueness import Uniqueness

__all__ = ["STANDARD"]

STANDARD: tuple[type[Invariant], ...] = (
    Ballots,
    Records,
    Uniqueness,
    Succession,
    Activation,
    Choice,
    Exclusion,
    Lifetimes,
    Trust,
    Laggards,
    Flush,
    Bounds,
    Replays,
    Liveness,
    Checkpoints,
)
"""In the order in which they are asked: the first that sees a violation tells it."""
