"""What ``FTLib.metrics`` counts; it goes on counting from one lifetime of a worker to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from .tally import CALLS, PAUSES, Tally

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Plain counts; each is written by one thread."""

    calls: int = 0
    redone: int = 0
    adopted: int = 0
    donated: int = 0
    views: int = 0
    rebuild_failures: int = 0
    vetoed: int = 0
    """Averages that nobody applied because of inf or nan."""
    bytes_averaged: int = 0
    """Bytes of tensors in finished calls."""
    pauses: Tally = field(default_factory=lambda: Tally(PAUSES))
    """From a freeze to the activation that ended it."""
    call_seconds: Tally = field(default_factory=lambda: Tally(CALLS))
    """From entering a call to its result, view changes included."""
    rolled_back: int = 0
    """Attempts at units that were undone."""
    last_wait: float = 0.0
    """Seconds that a call had been in progress here at the last activation, whatever led to it included; 0 for none."""
    rejoins: int = 0
    """Lifetimes after the first."""
    state_loads: int = 0
    state_bytes: int = 0
    recoveries: int = 0
    """States that came beside the others' training."""
    recovery_fallbacks: int = 0
    """Those that could not: the others waited."""
    averages_replayed: int = 0
    stood_in: int = 0
    """Calls in which a deputy took part, as the program was late."""
    checkpoints: int = 0
    """Written here and complete."""
    checkpoint_failures: int = 0
    checkpoints_skipped: int = 0
    """Because the one before was still being written."""
    checkpoint_step: int = 0
    """Of the newest that was completed here."""

    @property
    def last_pause(self) -> float:
        """Seconds from the last freeze to the activation that ended it."""
        return self.pauses.last
