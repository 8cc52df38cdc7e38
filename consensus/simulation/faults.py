"""All faults of a simulated network in one place. Probabilities are per message, times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Faults"]


@dataclass
class Faults:
    """What goes wrong on the way. ``cut`` holds (from, to) pairs of member ids whose messages vanish."""

    latency: tuple[float, float] = (0.0003, 0.0007)
    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    """Probability that a message is late by up to ``late``."""
    late: float = 0.2
    cut: set[tuple[str, str]] = field(default_factory=set)

    def cut_both(self, one: str, other: str) -> None:
        """No message between two members in either direction."""
        self.cut |= {(one, other), (other, one)}

    def heal(self) -> None:
        """A perfect network from now on."""
        self.loss = self.duplication = self.reordering = 0.0
        self.cut.clear()
