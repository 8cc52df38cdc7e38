"""The checkers of all invariants, as one observer; and the world that they watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..world.observer import Observer
from ..world.world import World
from .bounds import Bounds
from .exclusion import Exclusion
from .installation import Activation, Flush
from .invariant import Facts, Invariant
from .lifetimes import Lifetimes, Trust
from .progress import Laggards, Liveness
from .records import Records
from .replays import Replays
from .views import Succession, Uniqueness
from .voting import Ballots, Choice

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
)
"""In the order in which they are asked: the first that sees a violation tells it."""

I = TypeVar("I", bound=Invariant)  # noqa: E741


class Checkers(Observer):
    """Asks the invariants of ``kinds`` (``STANDARD`` where not given), after the facts that they go by."""

    def __init__(self, kinds: Sequence[type[Invariant]] | None = None) -> None:
        self.facts = Facts.of_nothing()
        self.invariants = [kind(self.facts) for kind in (STANDARD if kinds is None else kinds)]

    def parts(self) -> Sequence[Observer]:
        """See ``Observer``."""
        return [*self.facts.observers(), *self.invariants]

    def of(self, kind: type[I]) -> I:
        """The checker of that class; KeyError where it is not asked."""
        for invariant in self.invariants:
            if isinstance(invariant, kind):
                return invariant
        raise KeyError(kind.__name__)


def judged(world: World) -> World:
    """``world``, whose every event is checked from now on."""
    world.observe(Checkers())
    return world
