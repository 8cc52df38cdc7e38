"""Why each view changed and how long that took, as this member saw it: for people only, no decision depends on it.

Every member notes what it knew and did itself: when it first received each finding, about whom and from whom, and when it
froze, reported, installed, built and activated. The driver also notes when each member's report and READY arrived, so its
record tells which member was last in each phase. The newest ``LIMIT`` changes are kept (see ``change`` for one of them).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ...messages import MAX_DETAIL, Ballot
from ...view import Reason, Removal, View
from .change import LASTING, SHOWN, Change, Finding, FindingKind, Moment

LIMIT = 64
"""The most changes that are kept."""

FINDINGS = 64
"""The most findings of one change; further ones are dropped."""


class History:
    """This member's notes of each change. One change is always under way: the one to the successor of its view."""

    def __init__(self) -> None:
        self._done: deque[Change] = deque(maxlen=LIMIT)
        self._next = Change()
        self.changes: dict[str, int] = {}
        """Activated view changes by cause (see ``Change.cause``)."""
        self.removed: dict[str, int] = {}
        """Members removed in these changes, by cause."""
        self.joined = 0

    def __len__(self) -> int:
        return len(self._done)

    @property
    def newest(self) -> Change | None:
        """The change to the newest view known to be chosen, None before the first."""
        return self._done[-1] if self._done else None

    @property
    def _epoch(self) -> int:
        newest = self.newest
        return 0 if newest is None or newest.view is None else newest.view.epoch

    def _of(self, epoch: int) -> Change | None:
        """The change that leads to ``epoch``: the newest, or the one under way; None for older ones."""
        if epoch > self._epoch:
            return self._next
        return self.newest if epoch == self._epoch else None

    # Before a view is chosen

    def found(self, kind: FindingKind, accused: str, detail: str, source: str, now: float) -> None:
        """This member learned something that asks for a new view, or may lead to one; the first of its kind is kept."""
        findings = self._next.findings
        if len(findings) < FINDINGS:
            findings.setdefault((accused, kind), Finding(kind, accused, detail[:MAX_DETAIL], source, now))

    def cleared(self, member_id: str) -> None:
        """The member answers again."""
        for kind in (FindingKind.SUSPECT, FindingKind.SILENCE, FindingKind.FENCE):
            self._next.findings.pop((member_id, kind), None)

    def mended(self) -> None:
        """No link is known to be broken any more."""
        for key in [key for key in self._next.findings if key[1] is FindingKind.SEVERED]:
            del self._next.findings[key]

    def mark(self, moment: Moment, epoch: int, now: float) -> None:
        """Something happened on the way to ``epoch``, for the first time."""
        change = self._of(epoch)
        if change is not None:
            change.moments.setdefault(moment, now)

    def unmark(self, moment: Moment) -> None:
        """The step was taken back, and led to no view."""
        self._next.moments.pop(moment, None)

    def proposed(self, ballot: Ballot, now: float) -> None:
        """This member begins a ballot."""
        self._next.attempts += 1
        self._next.ballot = ballot
        self._next.moments.setdefault(Moment.PROPOSED, now)

    def reported(self, member_id: str, epoch: int, now: float) -> None:
        """The driver got a member's report."""
        change = self._of(epoch)
        if change is not None:
            change.reports.setdefault(member_id, now)

    def decided(self, quorum: tuple[str, ...], discounted: tuple[str, ...]) -> None:
        """The driver has a quorum for its ballot."""
        self._next.quorum, self._next.discounted = quorum, discounted

    # From the choice on

    def adopt(self, view: View, driver: str, now: float) -> None:
        """``view`` is the newest chosen view; lasting findings are carried over to the next change."""
        change, self._next = self._next, Change(parent=view)
        change.view, change.driver = view, driver
        change.moments.setdefault(Moment.CHOSEN, now)
        mine: dict[tuple[str, FindingKind], Finding] = {}
        for key, finding in change.findings.items():
            if finding.accused not in view or finding.kind is FindingKind.FROZEN:
                mine[key] = finding
            elif finding.kind in LASTING:
                self._next.findings[key] = finding
        change.findings = mine
        if change.ballot is not None and driver != change.ballot[1]:
            change.ballot = None  # another member's ballot won
        self._done.append(change)

    def reasons(self, removed: tuple[Removal, ...]) -> tuple[Reason, ...]:
        """Why members of the newest view's parent were removed, to be sent to the others."""
        change = self.newest
        if change is None:
            return ()
        told = [change.reason(removal) for removal in removed[:SHOWN]]
        return (*told, *(Reason(removal.member_id, removal.cause) for removal in removed[SHOWN:]))

    def installed(self, driver: str, ballot: Ballot, reasons: tuple[Reason, ...], now: float) -> None:
        """INSTALL of the newest view arrived, with the driver's reasons."""
        change = self.newest
        if change is None:
            return
        change.driver, change.ballot, change.reasons = driver, ballot, reasons
        change.moments.setdefault(Moment.INSTALLED, now)

    def readied(self, member_id: str, now: float) -> None:
        """The driver got a member's READY for the newest view."""
        if self.newest is not None:
            self.newest.readies.setdefault(member_id, now)

    def activated(self, now: float) -> None:
        """The newest view is active here."""
        change = self.newest
        if change is None or Moment.ACTIVATED in change.moments:
            return
        change.moments[Moment.ACTIVATED] = now
        self.changes[change.cause] = self.changes.get(change.cause, 0) + 1
        for reason in change.reasons:
            self.removed[reason.cause.value] = self.removed.get(reason.cause.value, 0) + 1
        self.joined += len(change.joined)

    # To look at

    def as_list(self) -> list[dict[str, Any]]:
        """The changes, oldest first, as plain values; the caller may add to each."""
        for change in self._done:
            if not change.told and change is not self.newest:
                change.told = change.as_dict()  # an older change does not grow any more
        return [dict(change.told or change.as_dict()) for change in self._done]

    def newest_as_dict(self) -> dict[str, Any]:
        """The change to the newest chosen view, as plain values; empty before the first."""
        return {} if self.newest is None else self.newest.as_dict()

    def under_way(self) -> dict[str, Any] | None:
        """The change that has begun and is not active here, None if there is none."""
        newest = self.newest
        if self._next.wanted:
            return self._next.sketch()
        if newest is not None and newest.moments.keys().isdisjoint({Moment.ACTIVATED}):
            return newest.sketch()
        return None

    def counts(self) -> dict[str, Any]:
        """Changes activated here since the start, and members that came and went in them."""
        return {"changes": dict(self.changes), "removed": dict(self.removed), "joined": self.joined}
