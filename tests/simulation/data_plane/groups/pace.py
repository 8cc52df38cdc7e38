"""How long operations of simulated process groups take, and how often they go wrong."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Pace:
    """How long things take, in seconds (at most), and how often they go wrong."""

    transit: float = 0.03
    """From the last member's entering an operation to its end at a member."""
    notice: float = 0.01
    """Until a closed connection is noticed."""
    build: float = 0.01
    slow: float = 0.05
    """Share of operations that take ten times as long at a member."""
    deaf: float = 0.5
    """Share of the members that are no neighbours who never notice a death by themselves."""
    linger: float = 0.003
    """Until an aborted operation ends; it may complete before."""
    endless: float = 0.03
    """Share of the aborted operations that never end."""
    unbuilt: float = 0.01
    """Share of the groups that fail to be built at a member."""
