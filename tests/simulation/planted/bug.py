"""A planted bug, the histories that show it, and the checker that must speak."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from consensus.simulation import World
from consensus.simulation.invariants import Invariant, Liveness, Violation, checkers

Patch = pytest.MonkeyPatch
Tell = Callable[[int], World]
"""Plays the history of a seed; raises Violation."""


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks a rule (its docstring says which); within ``seeds`` histories ``by`` says what matches ``says``.

    ``by``: the checker that speaks first; None where the history itself ends in an expectation. ``alone``: no other checker is
    asked, to show what the broken rule leads to, and not only that it is broken.
    """

    plant: Callable[[Patch], None]
    tell: Tell
    seeds: int
    by: type[Invariant] | None
    says: str
    alone: bool = False
    known: int = 0
    """The first seed that showed it when it was planted: it is tried first, which saves the search."""

    def __str__(self) -> str:
        return f"{self.plant.__name__}-{self.speaker}{'-alone' * self.alone}"

    @property
    def number(self) -> int:
        """Of the invariant that breaks; where a history ends in an expectation it is that the living go on."""
        return Liveness.number if self.by is None else self.by.number

    @property
    def speaker(self) -> str:
        """Who must notice."""
        return "expectation" if self.by is None else self.by.__name__

    def prepare(self, patch: Patch) -> None:
        """Break the rule."""
        self.plant(patch)
        if self.alone:
            patch.setattr(checkers, "STANDARD", (self.by,))

    def shows(self, seed: int) -> bool:
        """Whether the one who must notice does, in the history of that seed.

        Another checker may be quicker: then that history does not count. Whatever else goes wrong is not a catch: it is raised.
        """
        try:
            self.tell(seed)
        except Violation as violation:
            if self.by is None:
                raise
            told = str(violation).split("\n")[0]
            return told.startswith(f"invariant {self.by.number} ({self.by.title}): ") and bool(re.search(self.says, told))
        except AssertionError as error:
            if self.by is not None or not re.match(self.says, str(error)):
                raise
            return True
        return False

    def expect(self, patch: Patch) -> None:
        """It is found in time, and by itself: without it the same history is clean."""
        self.prepare(patch)
        found = next((seed for seed in (self.known, *range(self.seeds)) if self.shows(seed)), None)
        assert found is not None, f"{self.plant.__doc__} Nobody noticed within {self.seeds} histories."
        patch.undo()
        self.tell(found)
