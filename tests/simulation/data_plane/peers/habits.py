"""What a simulated program does, and how often."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Habits:
    """How often a program does what, as a share of its passes; ``late``: pushes nothing before the end of backward."""

    late: float = 0.15
    breaks_off: float = 0.1
    """Pushes only a part of the buckets."""
    raises: float = 0.03
    restarts: float = 0.05
    in_place: float = 0.3
    """Adds to the gradients that are there, views of the last result."""
    clips: float = 0.34
    """Share of the calls after which all clip what they got, in place."""
    unseen: float = 0.5
    """Share of these that do so in a way which no version shows, where sums do."""
    thinks: float = 0.02
    """Seconds at most, now and then, between an average and what is done with it."""
    views: float = 0.7
    """Share of the jobs whose gradients become views of the results."""
    heavy: float | None = None
    """Share of the passes that weigh more; drawn for each job if None."""
    reorder: int = 7
    """After so many steps the buckets are in another order; 0: never."""
    dawdles: float = 0.0
    """Takes long in the middle of backward."""
    program: str = ""
    """See ``program``; "" for one average after the other."""
    extras: int = 0
    """Each call whose number is a multiple of that is a barrier instead; 0: none."""
    deadline: float | None = None
    """Seconds after which a member's backup worker acts; None: it has none."""
    compressed: bool = False
    """Averages go by ``Halving``."""
    follows: bool = False
    """Joiners follow the others' calls until they have the state."""
    declines: float = 0.0
    """Share of the calls that a member declines instead (see ``Declined``)."""
    tarries: float = 0.0
    """Share of these before which it takes long, so that it may be late."""
    catches_up: bool = False
    """Each turn of ``program`` begins with ``catch_up``."""
