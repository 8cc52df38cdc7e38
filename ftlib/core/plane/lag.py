"""How far a late program is behind the deputy that stands in for it: what is granted, and what its state knows of."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lag"]


@dataclass(slots=True)
class Lag:
    """Part of the plane, and guarded by its lock."""

    calls: int = 0
    """Calls that the deputy finished and the program has not taken over."""
    steps: int = 0
    """Those of them that granted a step."""

    def grow(self, granted: int) -> None:
        """The deputy finished a call that granted so many steps."""
        self.calls += 1
        self.steps += granted

    def shrink(self, granted: int) -> None:
        """The program takes one over that granted so many steps. None are left where it was healed: see ``Plane.activate``."""
        self.calls = max(0, self.calls - 1)
        self.steps = max(0, self.steps - granted)
