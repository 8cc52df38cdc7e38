"""A chosen view that nobody brings to life: its driver is not in it, and has died, or lost its way.

Whoever drives a view to its own exclusion, or leaves with it, is missed by nobody as a member. So those who are left look at
the time, and ask for another view (see ``evidence``: ``FROZEN``).
"""

from __future__ import annotations

from math import inf

from ..state.core import Core
from .proposer import Proposer

ABANDONED_AFTER = 1.0
"""How long a chosen view may stay inactive whose driver is not in it."""


class Abandonment:
    """One member's patience with the newest view, while a driver outside of it has to bring that to life."""

    def __init__(self, core: Core, proposer: Proposer) -> None:
        self._core = core
        self._proposer = proposer
        self._adopted_at = -inf
        self._told = False

    def adopt(self, now: float) -> None:
        """A newer view is followed."""
        self._adopted_at = now
        self._told = False

    def due(self, now: float) -> bool:
        """Whether another view is to be asked for now; True once a view."""
        if now < self.deadline():
            return False
        self._told = True
        return True

    def deadline(self) -> float:
        """When it will be due; inf where there is nothing to wait for."""
        core = self._core
        if core.view is None or core.active is core.view or self._told or self._proposer.attempt is not None:
            return inf
        outside = core.driver not in core.view and core.member.id in core.view
        return self._adopted_at + ABANDONED_AFTER if outside else inf
