"""What happens in each round: drawn beforehand from the seed alone, so that every system gets the same."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ONE_WORKER = ("kill", "stop", "wedge", "leave")
"""Faults that hit one worker."""
FAULTS = (*ONE_WORKER, "join", "master")


@dataclass(frozen=True)
class Strike:
    """One fault of one round."""

    kind: str
    fraction: float
    """The victim, as a fraction of the slots that every system begins with; of no meaning for ``join`` and ``master``."""
    at: float = 0.0
    """Seconds after the schedule's end; 0 for those of the schedule, which come one after the other."""


@dataclass(frozen=True)
class Round:
    """One round's schedule, and the kills at random moments after it."""

    schedule: tuple[Strike, ...]
    kills: tuple[Strike, ...]
    first: frozenset[str]
    """Kinds that no round before has played: with these, a system is waited for as long as it takes by design."""


def rounds(count: int, seed: int, kinds: Sequence[str], each: int, window: float, mean: float) -> list[Round]:
    """So many rounds of ``each`` faults: of ``kinds``, all have been played before one is played again.

    ``window``: seconds of kills at random moments, ``mean`` seconds apart.
    """
    chance = random.Random(seed)
    deck = _deck(chance, kinds)
    found, seen = [], set[str]()
    for _ in range(count):
        schedule = tuple(Strike(next(deck), chance.random()) for _ in range(min(each, len(kinds))))
        found.append(Round(schedule, tuple(_kills(chance, window, mean)), frozenset(_kinds(schedule) - seen)))
        seen |= _kinds(schedule)
    return found


def _kinds(schedule: tuple[Strike, ...]) -> set[str]:
    return {strike.kind for strike in schedule}


def _deck(chance: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from chance.sample(kinds, len(kinds))


def _kills(chance: random.Random, window: float, mean: float) -> Iterator[Strike]:
    at = chance.expovariate(1 / mean)
    while at < window:
        yield Strike("kill", chance.random(), at)
        at += chance.expovariate(1 / mean)
