"""Invariant 10: the reports that everybody decides by are the same, and exactly the continuing members'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...messages import Accepted, FlushReply
from ...view import View
from .invariant import Invariant
from .witness import Sees, Thinks

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Flush"]


class Flush(Invariant):
    """Everybody who installs a view gets the same reports, one of each member that was in its parent, and of nobody else.

    A member gives one report an epoch, whatever ballot or driver asks, and it is that one which is installed. (That the same
    reports lead to the same target operation and digest is the data plane's to check.)
    """

    number = 10
    title = "the same reports everywhere"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._given: dict[tuple[str, int], bytes] = {}
        self._installed: dict[str, tuple[str, Mapping[str, bytes]]] = {}

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {
            Accepted: lambda host, _, message: self._give(host, message),
            FlushReply: lambda host, _, m: self._give(host, m),
        }

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {Accepted: self._give, FlushReply: self._give}

    def _give(self, host: Host, message: Accepted | FlushReply) -> None:
        first = self._given.setdefault((host.id, message.epoch), message.report)
        if first != message.report:
            name = self.jury.story.name(host.id)
            self.fail(f"{name} reports {message.report[:60]!r} for epoch {message.epoch} after {first[:60]!r}")

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:
        """See ``Witness``."""
        story = self.jury.story
        known = self._installed.get(view.view_id)
        if known is not None:
            if known[1] is not reports and known[1] != reports:
                self.fail(f"{story.name(host.id)} installs {story.show(view)} with other reports than {story.name(known[0])}")
            return
        self._installed[view.view_id] = (host.id, reports)
        before = self.jury.record.ids.get(view.parent_id, frozenset())
        continuing = [key for key in view.ids if key in before]
        if sorted(reports) != sorted(continuing):
            text = f"reports of {story.names(reports)}, continuing are {story.names(continuing)}"
            self.fail(f"{story.name(host.id)} installs {story.show(view)}: {text}")
        for writer, report in reports.items():
            if self._given.get((writer, view.epoch)) != report:
                self.fail(f"{story.show(view)} comes with a report of {story.name(writer)} that it never gave")
