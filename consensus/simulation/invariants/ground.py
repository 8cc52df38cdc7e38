"""The truth about faults: which process was not well, and until when. Checkers of detection judge by it.

A process is unwell while it is dead, stopped, paused, or held up, at the moment in which its clock jumps, and at each message
that the network loses or delays on its way from or to it. So a cut link harms nobody until a message meets it. Where the fault
is one end's own (a lossy or slow member), that end alone is to blame; else both are.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from ...errors import StoppedError
from ...messages import Message
from .witness import Witness

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Ground"]


class Ground(Witness):
    """``well_since``: from when on a process and all its links have been well without a break."""

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._touched: dict[str, float] = {}
        self._down: dict[str, int] = {}
        self.forged: set[str] = set()
        """Living processes in whose name a firewall refused a connection."""
        self.calm_since = 0.0
        """When anything was wrong, or changed by the script, last."""

    def well_since(self, member_id: str) -> float:
        """True time; ``inf`` for whoever is not well now."""
        host = self.world.hosts.get(member_id)
        if host is None or not host.alive or host.stopped is not None or self._down.get(member_id):
            return inf
        return self._touched.get(member_id, inf)

    def well_for(self, *member_ids: str) -> float:
        """Seconds for which all of these have been well; negative where one is not."""
        return self.now - max(self.well_since(key) for key in member_ids)

    def touch(self, *member_ids: str) -> None:
        """Something is wrong with these at this moment."""
        self.calm_since = self.now
        for key in member_ids:
            self._touched[key] = self.now

    def started(self, host: Host) -> None:
        """See ``Witness``."""
        self.touch(host.id)

    def killed(self, host: Host) -> None:
        """See ``Witness``."""
        self.touch(host.id)

    def paused(self, host: Host) -> None:
        """See ``Witness``."""
        self.touch(host.id)
        self._down[host.id] = self._down.get(host.id, 0) + 1

    def resumed(self, host: Host) -> None:
        """See ``Witness``."""
        self.touch(host.id)
        self._down[host.id] = max(0, self._down.get(host.id, 0) - 1)

    def jumped(self, host: Host, seconds: float) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self.touch(host.id)

    def refused(self, host: Host, target: Host) -> None:
        """See ``Witness``."""
        self.touch(host.id)
        self.forged.add(target.id)

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self.touch(host.id)

    def withheld(self, host: Host | None) -> None:  # noqa: ARG002 - no member is unwell for that
        """See ``Witness``."""
        self.touch()

    def lost(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._blame(host.id, target.id)

    def late(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self._blame(host.id, target.id)

    def _blame(self, one: str, other: str) -> None:
        faulty = [key for key in (one, other) if self.world.faults.faulty(key)]
        self.touch(*(faulty or (one, other)))
