"""Local health: how far to distrust one's own clock and network (Lifeguard, section IV-A).

A member whose probes fail although its helpers do not even say Nack is probably slow itself: it stretches its own timeouts
instead of accusing others.
"""

from __future__ import annotations

__all__ = ["Awareness"]


class Awareness:
    """A score from 0 (healthy) to ``maximum``; timeouts are multiplied by score + 1."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self.score = 0

    def better(self) -> None:
        """A probe was answered in time."""
        self.score = max(0, self.score - 1)

    def worse(self, by: int = 1) -> None:
        """A probe failed without nacks, an accusation of oneself had to be refuted, or the own loop stalled."""
        self.score = min(self._maximum, self.score + by)

    def stretch(self, seconds: float) -> float:
        """A timeout as this member should apply it now."""
        return seconds * (self.score + 1)
