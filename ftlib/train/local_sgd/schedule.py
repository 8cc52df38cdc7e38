"""When which fragment is averaged: pure, so that a table shows it.

A *sync* averages one fragment of the model. Syncs are numbered at all members alike, and fragments take turns. A member begins
a sync ``delay`` inner steps before it ends it. How many inner steps lie between two syncs is the member's own affair.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ...errors import ConfigError


class Move(Enum):
    """What a member does after an inner step."""

    NOTHING = "the next inner step"
    BEGIN = "begin the next sync"
    END = "end the sync that has begun"
    WHOLE = "begin the next sync, and end it"


@dataclass(frozen=True, slots=True)
class Schedule:
    """One member's schedule. ConfigError says which of its numbers do not fit together."""

    sync_every: int
    """Inner steps in which each fragment is averaged once."""
    fragments: int = 1
    delay: int = 0
    """Inner steps between the begin of a sync and its end."""

    def __post_init__(self) -> None:
        least_of = {"sync_every": 1, "fragments": 1, "delay": 0}
        for name, least in least_of.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least {least}")
        if self.sync_every % self.fragments:
            raise ConfigError(
                f"sync_every={self.sync_every} cannot be divided among {self.fragments} fragments: choose a multiple of "
                f"{self.fragments}, such as {-(-self.sync_every // self.fragments) * self.fragments}"
            )
        if self.delay >= self.period:
            raise ConfigError(
                f"delay={self.delay} must be below {self.period}, the inner steps from one sync to the next (sync_every / "
                "fragments), as one sync is under way at a time"
            )

    @property
    def period(self) -> int:
        """Inner steps from one sync to the next, which is of another fragment."""
        return self.sync_every // self.fragments

    def fragment(self, sync: int) -> int:
        """The fragment of the sync with this number, from 0 on."""
        return sync % self.fragments

    def move(self, steps: int, *, begun: bool) -> Move:
        """What to do when ``steps`` inner steps were done since the last sync; ``begun``: the next one has begun."""
        if steps >= self.period:
            return Move.END if begun else Move.WHOLE
        return Move.BEGIN if steps >= self.period - self.delay and not begun else Move.NOTHING
