"""Why each view changed and how long it took, as this member saw it: kept for people, nothing is decided by it.

Every member notes what it knew and did itself: when it first heard what against whom and from whom, when it froze, reported,
installed, built and activated. The driver also notes when each member's report and READY came in, so its record tells who was
last in each phase. Times are the driver's of this machine (``now``); the newest ``LIMIT`` changes are kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..member import Member, format_address
from ..messages import Ballot
from ..view import Cause, Reason, Removal, View

__all__ = ["DETAIL", "LIMIT", "Change", "Finding", "History", "Kind", "Moment"]

LIMIT = 64
"""So many changes are kept."""

FINDINGS = 64
"""So many findings a change; more are dropped."""

SHOWN = 32
"""Of the reports and READYs of one change so many are told, the latest: they are what the others waited for."""

LONGEST = 200
"""Characters of a detail that are kept."""

DETAIL = 96
"""Characters of a detail that are told to the others with the view, for the first ``SHOWN`` members that are gone."""


class Kind(Enum):
    """What was found. The first five ask for a new view, the others only lead there."""

    PROOF = "proof"
    SILENCE = "silence"
    UNREADY = "unready"
    LEAVE = "leave"
    FROZEN = "frozen"
    """The accused is the one who needs a new view: its data plane stopped."""

    SUSPECT = "suspect"
    FENCE = "fence"
    """The member's supervisor was asked to kill it."""


_DECISIVE = frozenset({Kind.PROOF, Kind.SILENCE, Kind.UNREADY, Kind.LEAVE, Kind.FROZEN})
_LASTING = frozenset({Kind.PROOF, Kind.LEAVE, Kind.SUSPECT, Kind.FENCE})
"""What is still held against a member in the view after (see ``EvidenceBook.adopt``)."""

_OF_CAUSE = {
    Cause.PROOF: Kind.PROOF,
    Cause.SILENCE: Kind.SILENCE,
    Cause.UNREADY: Kind.UNREADY,
    Cause.LEFT: Kind.LEAVE,
}
_WEIGHT = (Cause.PROOF, Cause.SILENCE, Cause.UNREADY, Cause.LEFT)
"""Of several causes the first counts as the change's."""


class Moment(Enum):
    """What happened once a change, in its usual order. PROPOSED, PREPARED, SENT and COMPLETE are the driver's alone."""

    WISHED = "wished"
    """The data plane was asked to stop at a call boundary, for a join."""

    HALTED = "halted"
    """The data plane stopped by itself: a failure, or the boundary asked for."""

    PROPOSED = "proposed"
    PREPARED = "prepared"
    """A quorum promised (only where the driver is not the most senior member)."""

    ASKED = "asked"
    """The data plane was asked to freeze."""

    FLUSHED = "flushed"
    """It has, and gave its report."""

    CHOSEN = "chosen"
    """The view is known to be chosen."""

    SENT = "sent"
    """Every continuing member has reported: INSTALL goes out."""

    INSTALLED = "installed"
    READY = "ready"
    COMPLETE = "complete"
    """Every member was ready: ACTIVATE goes out."""

    ACTIVATED = "activated"


@dataclass(frozen=True, slots=True)
class Finding:
    """``source`` (a member id) found something about ``accused``; ``time``: when this member knew."""

    kind: Kind
    accused: str
    detail: str
    source: str
    time: float


@dataclass(slots=True)
class Change:
    """The way from ``parent`` (None: this member was in no view) to ``view`` (None: not chosen yet)."""

    parent: View | None = None
    view: View | None = None
    driver: str = ""
    ballot: Ballot | None = None
    attempts: int = 0
    """Ballots that this member tried itself."""

    quorum: tuple[str, ...] = ()
    """Who had voted when the driver knew the view to be chosen."""

    discounted: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    findings: dict[tuple[str, Kind], Finding] = field(default_factory=dict)
    moments: dict[Moment, float] = field(default_factory=dict)
    reports: dict[str, float] = field(default_factory=dict)
    """At the driver: when each member's report came."""

    readies: dict[str, float] = field(default_factory=dict)
    """At the driver: when each member's READY came."""
    told: dict[str, Any] = field(default_factory=dict)
    """``as_dict`` of a change that is over."""

    @property
    def removed(self) -> tuple[Member, ...]:
        """Who was in the parent and is not in the view."""
        if self.parent is None or self.view is None:
            return ()
        kept = frozenset(self.view.ids)
        return tuple(member for member in self.parent.members if member.id not in kept)

    @property
    def joined(self) -> tuple[Member, ...]:
        """Who is in the view and was not in the parent."""
        if self.view is None:
            return ()
        before = frozenset() if self.parent is None else frozenset(self.parent.ids)
        return tuple(member for member in self.view.members if member.id not in before)

    @property
    def began(self) -> float:
        """When this member first had a reason for the change, or took part in it."""
        times = [finding.time for finding in self.findings.values() if finding.kind in _DECISIVE]
        times += [time for moment, time in self.moments.items() if moment is not Moment.WISHED]
        return min(times, default=0.0)

    @property
    def cause(self) -> str:
        """The kind of change in one word, by its weightiest reason."""
        causes = {reason.cause for reason in self.reasons}
        for cause in _WEIGHT:
            if cause in causes:
                return cause.value
        if self.removed:
            return "unknown"
        if self.view is not None and not self.view.parent_id:
            return "founded"
        return "joined" if self.joined else "rebuilt"

    @property
    def phases(self) -> dict[str, float]:
        """How long each part took, in seconds: until the last member was through at the driver, else this one."""
        ends = {
            "settle": self.moments.get(Moment.PROPOSED, self.moments.get(Moment.ASKED)),
            "freeze": self.moments.get(Moment.SENT, self.moments.get(Moment.INSTALLED)),
            "build": self.moments.get(Moment.COMPLETE, self.moments.get(Moment.READY)),
            "activate": self.moments.get(Moment.ACTIVATED),
        }
        found, last = {}, self.began
        for phase, end in ends.items():
            if end is not None:
                found[phase] = round(end - last, 6)
                last = end
        return {**found, "total": round(last - self.began, 6)}

    def reason(self, removal: Removal) -> Reason:
        """Why a member was removed, with the finding behind it as far as it is known here."""
        finding = self.findings.get((removal.member_id, _OF_CAUSE[removal.cause]))
        if finding is None:
            return Reason(removal.member_id, removal.cause)
        fence = self.findings.get((removal.member_id, Kind.FENCE))
        detail = finding.detail if fence is None else f"{fence.detail}, fenced: {finding.detail}"
        return Reason(removal.member_id, removal.cause, detail[:DETAIL], finding.source)

    def as_dict(self) -> dict[str, Any]:
        """Plain values. ``at``: seconds on the boot clock; all other times are seconds after it (before it: negative)."""
        assert self.view is not None
        began = self.began
        reports, readies = _latest(self.reports, began), _latest(self.readies, began)
        mentioned = {self.driver, *reports, *readies, *self.quorum, *self.discounted}
        mentioned |= {member.id for member in (*self.removed, *self.joined)}
        mentioned |= {name for finding in self.findings.values() for name in (finding.accused, finding.source)}
        mentioned |= {reason.source for reason in self.reasons}
        known = {member.id: member for view in (self.parent, self.view) if view is not None for member in view.members}
        return {
            "epoch": self.view.epoch,
            "view_id": self.view.view_id,
            "parent_id": self.view.parent_id,
            "at": round(began, 6),
            "cause": self.cause,
            "size_before": 0 if self.parent is None else len(self.parent),
            "size": len(self.view),
            "removed": self._removals(),
            "joined": [member.id for member in self.joined[:SHOWN]],
            "driver": self.driver,
            "ballot": None if self.ballot is None else list(self.ballot),
            "attempts": self.attempts,
            "quorum": list(self.quorum[:SHOWN]),
            "discounted": list(self.discounted[:SHOWN]),
            "findings": [_finding_dict(item, began) for item in sorted(self.findings.values(), key=lambda item: item.time)],
            "moments": {moment.value: round(self.moments[moment] - began, 6) for moment in Moment if moment in self.moments},
            "phases": self.phases,
            "reports": reports,
            "readies": readies,
            "names": {key: _name(known[key]) for key in sorted(mentioned) if key in known},
        }

    def _removals(self) -> list[dict[str, Any]]:
        """A reason for everybody who is gone: told with the view, found here, or not known."""
        told = {reason.member_id: reason for reason in self.reasons}
        return [_reason_dict(member.id, told.get(member.id) or self._own_reason(member.id)) for member in self.removed[:SHOWN]]

    def _own_reason(self, member_id: str) -> Reason | None:
        for cause in _WEIGHT:
            if (member_id, _OF_CAUSE[cause]) in self.findings:
                return self.reason(Removal(member_id, cause))
        return None


class History:
    """What this member notes of each change. One change is always under way: the one to the successor of its view."""

    def __init__(self) -> None:
        self._done: deque[Change] = deque(maxlen=LIMIT)
        self._next = Change()
        self.changes: dict[str, int] = {}
        """Activated view changes by cause (see ``Change.cause``)."""
        self.removed: dict[str, int] = {}
        """Members removed in them, by cause."""
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

    def found(self, kind: Kind, accused: str, detail: str, source: str, now: float) -> None:
        """This member knows of something that asks for a new view, or leads there; the first of its kind is kept."""
        findings = self._next.findings
        if len(findings) < FINDINGS:
            findings.setdefault((accused, kind), Finding(kind, accused, detail[:LONGEST], source, now))

    def cleared(self, member_id: str) -> None:
        """It answers again."""
        for kind in (Kind.SUSPECT, Kind.SILENCE, Kind.FENCE):
            self._next.findings.pop((member_id, kind), None)

    def mark(self, moment: Moment, epoch: int, now: float) -> None:
        """Something happened on the way to ``epoch``, for the first time."""
        change = self._of(epoch)
        if change is not None:
            change.moments.setdefault(moment, now)

    def unmark(self, moment: Moment) -> None:
        """It was taken back, and no view came of it."""
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
        """``view`` is the newest chosen one; what still matters is carried over to the change after it."""
        change, self._next = self._next, Change(parent=view)
        change.view, change.driver = view, driver
        change.moments.setdefault(Moment.CHOSEN, now)
        mine: dict[tuple[str, Kind], Finding] = {}
        ids = frozenset(view.ids) if change.findings else frozenset()
        for key, finding in change.findings.items():
            if finding.accused not in ids or finding.kind is Kind.FROZEN:
                mine[key] = finding
            elif finding.kind in _LASTING:
                self._next.findings[key] = finding
        change.findings = mine
        if change.ballot is not None and driver != change.ballot[1]:
            change.ballot = None  # another member's ballot won
        self._done.append(change)

    def reasons(self, removed: tuple[Removal, ...]) -> tuple[Reason, ...]:
        """Why the members of the newest view's parent were removed, for the others."""
        change = self.newest
        if change is None:
            return ()
        told = [change.reason(removal) for removal in removed[:SHOWN]]
        return (*told, *(Reason(removal.member_id, removal.cause) for removal in removed[SHOWN:]))

    def installed(self, view: View, driver: str, ballot: Ballot, reasons: tuple[Reason, ...], now: float) -> None:
        """INSTALL came, with the driver's reasons."""
        change = self.newest
        if change is None or change.view is None or change.view.view_id != view.view_id:
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
                change.told = change.as_dict()  # nothing is added to an older one any more
        return [dict(change.told or change.as_dict()) for change in self._done]

    def counts(self) -> dict[str, Any]:
        """Changes activated here since the start, and members that came and went in them."""
        return {"changes": dict(self.changes), "removed": dict(self.removed), "joined": self.joined}


def _latest(times: dict[str, float], began: float) -> dict[str, float]:
    """The last ``SHOWN`` entries by time, relative to ``began``."""
    ordered = sorted(times.items(), key=lambda item: item[1])
    return {member_id: round(time - began, 6) for member_id, time in ordered[-SHOWN:]}


def _finding_dict(finding: Finding, began: float) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "accused": finding.accused,
        "detail": finding.detail,
        "source": finding.source,
        "after": round(finding.time - began, 6),
    }


def _reason_dict(member_id: str, reason: Reason | None) -> dict[str, Any]:
    if reason is None:
        return {"id": member_id, "cause": None, "detail": "", "source": ""}
    return {"id": member_id, "cause": reason.cause.value, "detail": reason.detail, "source": reason.source}


def _name(member: Member) -> dict[str, str | None]:
    return {"name": member.fact("name"), "address": format_address(member.address)}
