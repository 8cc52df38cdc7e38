"""Activating a chosen view: collect every continuing member's report, INSTALL, collect READY, ACTIVATE.

A quorum's reports are not enough: a silent member may have finished and applied the very call that the others would redo. A
member that stays silent here is removed by the next epoch, whose acceptors are the members of this chosen view.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum

from ...member import Member
from ...messages import Ballot, FlushRequest, Install
from ...messages.reports import Reports
from ...transitions import Table
from ...view import Cause, Delta, Reason, View
from .attempt import AGAIN

PAUSE = 0.1
"""Seconds after which INSTALL is sent again, doubled each time ..."""
RESEND_AT_MOST = 0.5
"""... up to this: a member that has received it may still be building."""


class InstallationStage(Enum):
    """What the driver of a view waits for. ACTIVE: nothing; until a newer view it answers a READY whose ACTIVATE was lost."""

    REPORTS = "reports"
    READIES = "readies"
    ACTIVE = "active"
    GIVEN_UP = "given up"


class Gain(Enum):
    """The events that move an installation on."""

    REPORTED = "every continuing member has reported"
    ALL_READY = "every member is ready"
    NEWER = "a newer view is chosen"


INSTALLATION: Table[InstallationStage, Gain] = Table(
    "installation",
    InstallationStage.REPORTS,
    {
        InstallationStage.REPORTS: {Gain.REPORTED: InstallationStage.READIES, Gain.NEWER: InstallationStage.GIVEN_UP},
        InstallationStage.READIES: {Gain.ALL_READY: InstallationStage.ACTIVE, Gain.NEWER: InstallationStage.GIVEN_UP},
        InstallationStage.ACTIVE: {Gain.NEWER: InstallationStage.GIVEN_UP},
    },
)


class Installation:
    """The driver's side of one chosen view. ``parent`` is None if the view is a founding one."""

    def __init__(
        self,
        view: View,
        parent: View | None,
        ballot: Ballot,
        reports: dict[str, bytes],
        now: float,
        *,
        after_call: int | None = None,
        leavers: tuple[Member, ...] = (),
        removed: tuple[Reason, ...] = (),
        trail: tuple[str, ...] = (),
    ) -> None:
        """``leavers``: the members to inform that they are out, once INSTALL is sent.

        ``removed``: the removed members of the parent, and why. ``trail``: for joiners, the ids of the views before this one,
        newest first.
        """
        self.view = view
        self.parent = parent
        self.delta = Delta.between(parent, view)
        self.ballot = ballot
        self.reports = reports
        self.continuing = () if parent is None else tuple(key for key in view.ids if key in parent)
        """The members of the view that were in its parent; they come first in it."""
        self._unreported = dict.fromkeys(key for key in self.continuing if key not in reports)
        self._unready = dict.fromkeys(view.ids)
        self.started = now
        self.next_send = now
        self.stage = INSTALLATION.start
        self._pause = PAUSE
        self.leavers = leavers
        self._after_call = after_call
        self._removed = removed
        self._trail = trail
        self._pulls = Counter[str]()

    def pulled(self, member_id: str) -> bool:
        """A member was told of the parent. True if it is to be asked for its report again at once."""
        waits = not self.sent and member_id in self._unreported
        self._pulls[member_id] += waits
        return waits and self._pulls[member_id] <= AGAIN

    def reported(self, member_id: str, report: bytes) -> None:
        """A report arrived; the first one of a member counts."""
        self.reports.setdefault(member_id, report)
        self._unreported.pop(member_id, None)

    def readied(self, member_id: str) -> None:
        """A member built its group."""
        self._unready.pop(member_id, None)

    def send_at(self, moment: float) -> None:
        """At ``moment`` ask again for what is missing."""
        self.next_send = moment

    def sent_again(self, now: float) -> None:
        """INSTALL was sent again: the next time after a longer pause."""
        self._pause = min(2 * self._pause, RESEND_AT_MOST)
        self.next_send = now + self._pause

    def give_up_call(self) -> None:
        """Let members report at once: the call that they were to end first may never end."""
        self._after_call = None

    def advance(self, gain: Gain) -> None:
        """Enter the next stage, or end."""
        self.stage = INSTALLATION.after(self.stage, gain)

    @property
    def sent(self) -> bool:
        """Whether INSTALL was sent; its reports never change."""
        return self.stage is not InstallationStage.REPORTS

    @property
    def active(self) -> bool:
        """Whether ACTIVATE was sent."""
        return self.stage is InstallationStage.ACTIVE

    def missing_reports(self) -> tuple[str, ...]:
        """Members that have not reported yet, by seniority."""
        return tuple(self._unreported)

    def busy_leavers(self) -> tuple[str, ...]:
        """Leavers whose last call has not ended yet: without the old group it could not end."""
        leaving = [reason.member_id for reason in self._removed if reason.cause is Cause.LEFT]
        return tuple(member_id for member_id in leaving if member_id not in self.reports)

    def missing_ready(self) -> tuple[str, ...]:
        """Members that have not built their group yet, by seniority."""
        return tuple(self._unready)

    @property
    def complete(self) -> bool:
        """Whether all continuing members have reported (asked after every report)."""
        return not self._unreported

    @property
    def all_ready(self) -> bool:
        """Whether all members have built their group (asked after every READY)."""
        return not self._unready

    def flush_request(self) -> FlushRequest:
        """The request to members whose report is missing; without a parent there are none."""
        assert self.delta is not None
        return FlushRequest(self.delta, self._after_call)

    def message(self, *, whole: bool) -> Install:
        """INSTALL, with exactly the reports of the continuing members. ``whole``: for members that do not hold the parent."""
        reports = Reports.of([self.reports[member_id] for member_id in self.continuing])
        delta = None if whole else self.delta
        if delta is not None:
            return Install(None, delta, self.ballot, reports, self._removed)
        return Install(self.view, None, self.ballot, reports, self._removed, self._trail)
