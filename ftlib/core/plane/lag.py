"""Where the program is among the calls: how far behind its backup worker, and whether at a border between two calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Lag:
    """How far a late program is behind its backup worker: calls and granted steps that are not yet in the program's state.

    Part of the plane, guarded by the plane's lock.
    """

    calls: int = 0
    """Calls that the backup worker finished and the program has not taken over."""
    steps: int = 0
    """Steps that those calls granted."""

    def grow(self, granted: int) -> None:
        """The backup worker finished a call that granted ``granted`` steps."""
        self.calls += 1
        self.steps += granted

    def shrink(self, granted: int) -> None:
        """The program takes over a call that granted ``granted`` steps. Healing removes the lag: see ``Plane.activate``."""
        self.calls = max(0, self.calls - 1)
        self.steps = max(0, self.steps - granted)


@dataclass(slots=True)
class Borders:
    """The places between calls at which the program is done with all that the last call led to: the beginning of its loop,
    where it calls ``catch_up``, and its steps on private state. Part of the plane, guarded by the plane's lock.
    """

    before: int = 0
    """The call before which the program has come to a border; 0: none yet."""
    step: int = 0
    """The steps granted by then."""
    told: bool = False
    """True if steps were granted between two of them: it comes to them in its loop, and there are none before other calls."""

    inner: int = 0
    """How many steps the program has done by itself, between calls or in an open one."""

    def stepped(self, inner: int) -> None:
        """The program has done its ``inner``-th step by itself."""
        self.inner = inner

    def come(self, number: int, step: int) -> None:
        """The program is at a border before call ``number``, after ``step`` steps."""
        self.told = self.told or bool(self.before and step > self.step)
        self.before, self.step = number, step
