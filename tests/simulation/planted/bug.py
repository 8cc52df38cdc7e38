"""A planted bug, the histories that show it, and the checker that must speak."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest

from consensus.simulation import World
from consensus.simulation.invariants import Invariant, Violation, standard

Patch = pytest.MonkeyPatch
Tell = Callable[[int], World]
"""Plays the history of a seed; raises Violation."""


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks a rule (its docstring says which); within ``seeds`` histories ``by`` says what matches ``says``.

    All checkers are asked, unless ``alone``: then only ``by`` is, to show what the broken rule leads to, and not only that
    it is broken.
    """

    plant: Callable[[Patch], None]
    tell: Tell
    seeds: int
    by: type[Invariant]
    says: str
    alone: bool = False

    def __str__(self) -> str:
        return f"{self.plant.__name__}-{self.by.__name__}{'-alone' * self.alone}"

    def expect(self, patch: Patch) -> int:
        """Plant it and play; the seed that showed it. Whatever else goes wrong is not a catch: it is raised."""
        self.plant(patch)
        if self.alone:
            patch.setattr(standard, "STANDARD", (self.by,))
        for seed in range(self.seeds):
            try:
                self.tell(seed)
            except Violation as violation:
                told = str(violation).split("\n")[0]
                speaker = f"invariant {self.by.number} ({self.by.title}): "
                assert told.startswith(speaker), f"{self.by.__name__} was to speak, not: {told}"
                assert re.search(self.says, told), told
                return seed
        raise AssertionError(f"{self.plant.__doc__} Nobody noticed within {self.seeds} histories.")


def histories(bugs: Iterable[Bug]) -> dict[Tell, int]:
    """Every history that ``bugs`` are shown by, and with how many seeds at most."""
    found: dict[Tell, int] = {}
    for bug in bugs:
        found[bug.tell] = max(bug.seeds, found.get(bug.tell, 0))
    return found
