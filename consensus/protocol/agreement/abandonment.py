"""A chosen view that nobody activates: its driver is not in it, and has died or cannot reach the members.

A driver that is excluded by its view, or leaves with it, is watched by no member of that view. So the members time the change,
and ask for another view (see ``EvidenceKind.FROZEN``).
"""

from __future__ import annotations

from math import inf

from ..state.core import Core
from .proposer import Proposer

ABANDONED_AFTER = 1.0
"""Seconds for which a chosen view may stay inactive if its driver is not in it."""


class Abandonment:
    """Times the newest view while a driver outside of it has to activate it."""

    def __init__(self, core: Core, proposer: Proposer) -> None:
        self._core = core
        self._proposer = proposer
        self._missed_at = inf

    def adopt(self, now: float) -> None:
        """Follow a newer view."""
        self._missed_at = now + ABANDONED_AFTER

    def due(self, now: float) -> bool:
        """Whether to ask for another view now; True only once for each view."""
        if now < self.deadline():
            return False
        self._missed_at = inf
        return True

    def deadline(self) -> float:
        """When another view is due; inf if the newest view needs none."""
        core = self._core
        if core.view is None or core.active is core.view or self._proposer.attempt is not None:
            return inf
        outside = core.driver not in core.view and core.member.id in core.view
        return self._missed_at if outside else inf
