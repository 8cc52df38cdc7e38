"""How far a late program is behind its deputy: calls and steps that were granted, but are not yet in the program's state."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Lag"]


@dataclass(slots=True)
class Lag:
    """Part of the plane, guarded by the plane's lock."""

    calls: int = 0
    """Calls that the deputy finished and the program has not taken over."""
    steps: int = 0
    """Steps that those calls granted."""

    def grow(self, granted: int) -> None:
        """The deputy finished a call that granted ``granted`` steps."""
        self.calls += 1
        self.steps += granted

    def shrink(self, granted: int) -> None:
        """The program takes over a call that granted ``granted`` steps. Healing removes the lag: see ``Plane.activate``."""
        self.calls = max(0, self.calls - 1)
        self.steps = max(0, self.steps - granted)
