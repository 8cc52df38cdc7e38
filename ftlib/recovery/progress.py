"""How far a joiner is, for the person who waits."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of a recovery. Bytes, bytes a second, seconds."""

    total: int
    got: int
    rate: float
    """Over the last seconds; 0 where nothing arrived."""
    left: float | None
    """Seconds until all has arrived, at that rate; None where nobody can say."""
    pending: int
    """Averages that wait to be replayed."""
    braking: bool
    """Whether the others wait for this member, since it cannot hold more averages or cannot keep pace."""
