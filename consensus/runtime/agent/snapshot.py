"""What other threads than the agent's may know of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import StoppedError
from ...view import Reason, View


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What other threads may know: published by the loop's thread, never changed."""

    known: View | None = None
    """The newest chosen view; for a joiner the cluster's, as it was told."""

    installed: View | None = None
    active: View | None = None
    changing: bool = False
    applicants_waiting: bool = False
    stopped: StoppedError | None = None
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    driver: str = ""
    """Who installs the newest chosen view, as far as it is known."""

    @property
    def confirmed(self) -> bool:
        """Whether the active view is the newest known and nothing is under way."""
        return (
            self.stopped is None
            and not self.changing
            and self.active is not None
            and (self.known is None or self.known.epoch <= self.active.epoch)
        )
