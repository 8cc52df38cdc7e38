"""Bringing a chosen view to life: collect every continuing member's report, INSTALL, collect READY, ACTIVATE.

A quorum's reports are not enough: a silent member may have finished and applied the very call that the others would redo.
Who stays silent here is removed by the next epoch, whose acceptors are the members of this chosen view.
"""

from __future__ import annotations

from ..member import Member
from ..messages import Ballot, FlushRequest, Install
from ..view import Cause, Reason, View

__all__ = ["Installation"]


class Installation:
    """The coordinator's side of one chosen view. ``parent`` is None when the view is a founding one."""

    def __init__(self, view: View, parent: View | None, ballot: Ballot, reports: dict[str, bytes], now: float) -> None:
        self.view = view
        self.parent = parent
        self.ballot = ballot
        self.reports = reports
        self.ready: set[str] = set()
        self.started = now
        self.next_send = now
        self.sent = False
        self.active = False
        self.pause = 0.1
        self.after_call: int | None = None
        self.leavers: tuple[Member, ...] = ()
        """Whom to tell that they are out, once INSTALL is sent."""
        self.removed: tuple[Reason, ...] = ()
        """Who of the parent is not in it, and why."""

    @property
    def continuing(self) -> tuple[str, ...]:
        """Members of the view that were in its parent."""
        if self.parent is None:
            return ()
        return tuple(member.id for member in self.view.members if member.id in self.parent)

    def missing_reports(self) -> tuple[str, ...]:
        """Who has not reported yet."""
        return tuple(member_id for member_id in self.continuing if member_id not in self.reports)

    def busy_leavers(self) -> tuple[str, ...]:
        """Who leaves after a call that has not ended there yet: without the old group it could not."""
        leaving = [reason.member_id for reason in self.removed if reason.cause is Cause.LEFT]
        return tuple(member_id for member_id in leaving if member_id not in self.reports)

    def missing_ready(self) -> tuple[str, ...]:
        """Who has not built its group yet."""
        return tuple(member_id for member_id in self.view.ids if member_id not in self.ready)

    def flush_request(self) -> FlushRequest:
        """What to ask of members whose report is missing."""
        return FlushRequest(self.view, self.after_call)

    def message(self) -> Install:
        """INSTALL, with exactly the reports of the continuing members."""
        reports = tuple((member_id, self.reports[member_id]) for member_id in self.continuing)
        return Install(self.view, self.ballot, reports, self.removed)
