"""A data plane that moves nothing: for clusters that only want an agreed member list, and for tests of
``consensus``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import StoppedError
from .interface import Consensus
from .view import View

__all__ = ["NullPlane"]


class NullPlane:
    """Answers every question at once: there is never anything to freeze, to build or to finish."""

    def __init__(self, consensus: Consensus) -> None:
        """``consensus`` takes the answers."""
        self._consensus = consensus

    def freeze(self, epoch: int, after_call: int | None) -> None:  # noqa: ARG002
        """Nothing runs, so nothing has to end first."""
        self._consensus.flushed(epoch, b"")

    def expect(self, view: View) -> None:
        """There is no group to build."""

    def install(self, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """There is no group to build."""
        self._consensus.ready(view.view_id)

    def activate(self, view: View) -> None:
        """Whoever wants to know asks the consensus."""

    def wish(self, wanted: bool) -> None:
        """Every moment is a boundary."""
        if wanted:
            self._consensus.boundary(0)

    def peer_progress(self, member_id: str, finished: int, current: int) -> None:
        """Nothing depends on it."""

    def stalled(self, call: int, waited: float) -> None:
        """There are no calls to wait in."""

    def facts(self) -> Mapping[str, Any]:
        """None to tell."""
        return {}

    def stopped(self, error: StoppedError) -> None:
        """Whoever wants to know asks the consensus."""
