"""What threads other than the agent's may read about a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import StoppedError
from ...view import Reason, View


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What other threads may read: published by the loop's thread, never changed."""

    known: View | None = None
    """The newest chosen view; for a joiner the cluster's view as it received it."""

    installed: View | None = None
    active: View | None = None
    changing: bool = False
    applicants_waiting: bool = False
    stopped: StoppedError | None = None
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    driver: str = ""
    """Id of the member that installs the newest chosen view, as far as known."""

    @property
    def confirmed(self) -> bool:
        """Whether the active view is the newest known and no change is under way."""
        return (
            self.stopped is None
            and not self.changing
            and self.active is not None
            and (self.known is None or self.known.epoch <= self.active.epoch)
        )
