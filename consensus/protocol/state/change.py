"""One view change as a member saw it: the findings that led to it, and the time of each step on the way to the new view.

All times are on this member's clock (``now``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ...member import Member, format_address
from ...messages import Ballot
from ...view import Cause, Reason, Removal, View

SHOWN = 32
"""The most reports and READYs of one change that ``sketch`` shows: the latest ones, since all others waited for them."""

DETAIL = 96
"""The most characters of a detail that are sent to other members with the view, for the first ``SHOWN`` removed members."""


class FindingKind(Enum):
    """The kind of a finding. The first six ask for a new view, the others may only lead to one."""

    PROOF = "proof"
    SILENCE = "silence"
    UNREADY = "unready"
    SEVERED = "severed"
    LEAVE = "leave"
    COHORT = "cohort"
    """Another member of its cohort is removed."""

    FROZEN = "frozen"
    """The accused itself needs a new view: its data plane stopped."""

    SUSPECT = "suspect"
    FENCE = "fence"
    """The member's supervisor was asked to kill it."""


DECISIVE = frozenset(
    {FindingKind.PROOF, FindingKind.SILENCE, FindingKind.UNREADY, FindingKind.SEVERED, FindingKind.LEAVE, FindingKind.FROZEN}
)
LASTING = frozenset({FindingKind.PROOF, FindingKind.LEAVE, FindingKind.SUSPECT, FindingKind.FENCE})
"""The findings that still count against a member in the next view (see ``EvidenceBook.adopt``)."""

_OF_CAUSE = {
    Cause.PROOF: FindingKind.PROOF,
    Cause.SILENCE: FindingKind.SILENCE,
    Cause.UNREADY: FindingKind.UNREADY,
    Cause.SEVERED: FindingKind.SEVERED,
    Cause.LEFT: FindingKind.LEAVE,
    Cause.COHORT: FindingKind.COHORT,
}
_WEIGHT = (Cause.PROOF, Cause.SILENCE, Cause.UNREADY, Cause.SEVERED, Cause.LEFT, Cause.COHORT)
"""The first of these among a change's reasons is the cause of the change."""


class Moment(Enum):
    """Steps that happen once a change, in the usual order. Only the driver notes PROPOSED, PREPARED, SENT and COMPLETE."""

    BOUNDARY_REQUESTED = "wished"
    """The data plane was asked to stop at a call boundary, for a join."""

    HALTED = "halted"
    """The data plane stopped by itself: after a failure, or at the requested boundary."""

    PROPOSED = "proposed"
    PREPARED = "prepared"
    """A quorum promised (only if the driver is not the most senior member)."""

    ASKED = "asked"
    """The data plane was asked to freeze."""

    FLUSHED = "flushed"
    """The data plane has frozen and given its report."""

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
    """``source`` (a member id) found something about ``accused``; ``time``: when this member learned it."""

    kind: FindingKind
    accused: str
    detail: str
    source: str
    time: float


@dataclass(slots=True)
class Change:
    """The change from ``parent`` (None: this member was in no view) to ``view`` (None: not chosen yet)."""

    parent: View | None = None
    view: View | None = None
    driver: str = ""
    ballot: Ballot | None = None
    attempts: int = 0
    """Ballots that this member tried itself."""

    quorum: tuple[str, ...] = ()
    """The members that had voted when the driver learned that the view is chosen."""

    discounted: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()
    findings: dict[tuple[str, FindingKind], Finding] = field(default_factory=dict)
    moments: dict[Moment, float] = field(default_factory=dict)
    reports: dict[str, float] = field(default_factory=dict)
    """At the driver: when each member's report arrived."""

    readies: dict[str, float] = field(default_factory=dict)
    """At the driver: when each member's READY arrived."""
    told: dict[str, Any] = field(default_factory=dict)
    """``as_dict`` of a change that is over."""

    @property
    def wanted(self) -> bool:
        """Whether there is a reason for the change yet, or this member takes part in it."""
        return any(finding.kind in DECISIVE for finding in self.findings.values()) or bool(
            self.moments.keys() - {Moment.BOUNDARY_REQUESTED}
        )

    @property
    def removed(self) -> tuple[Member, ...]:
        """The members of the parent that are not in the view."""
        return () if self.parent is None or self.view is None else self.view.since(self.parent).departed

    @property
    def joined(self) -> tuple[Member, ...]:
        """The members of the view that were not in the parent."""
        if self.view is None:
            return ()
        return self.view.members if self.parent is None else self.view.since(self.parent).arrived

    @property
    def began(self) -> float:
        """When this member first had a reason for the change, or took part in it."""
        times = [finding.time for finding in self.findings.values() if finding.kind in DECISIVE]
        times += [time for moment, time in self.moments.items() if moment is not Moment.BOUNDARY_REQUESTED]
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
        """Seconds of each phase: at the driver until the last member had finished it, elsewhere until this one had."""
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
        """Why a member was removed, with the finding behind it if this member knows that."""
        finding = self.findings.get((removal.member_id, _OF_CAUSE[removal.cause]))
        if finding is None:
            return Reason(removal.member_id, removal.cause)
        fence = self.findings.get((removal.member_id, FindingKind.FENCE))
        detail = finding.detail if fence is None else f"{fence.detail}, fenced: {finding.detail}"
        return Reason(removal.member_id, removal.cause, detail[:DETAIL], finding.source)

    @property
    def epoch(self) -> int:
        """The epoch to which the change leads."""
        if self.view is not None:
            return self.view.epoch
        return 1 if self.parent is None else self.parent.epoch + 1

    def sketch(self) -> dict[str, Any]:
        """The change so far, as plain values: see ``as_dict`` for the times."""
        began = self.began
        reports, readies = _latest(self.reports, began), _latest(self.readies, began)
        mentioned = {self.driver, *reports, *readies, *self.quorum, *self.discounted}
        mentioned |= {member.id for member in (*self.removed, *self.joined)}
        mentioned |= {name for finding in self.findings.values() for name in (finding.accused, finding.source)}
        mentioned |= {reason.source for reason in self.reasons}
        known = {member.id: member for view in (self.parent, self.view) if view is not None for member in view.members}
        return {
            "epoch": self.epoch,
            "at": round(began, 6),
            "size_before": 0 if self.parent is None else len(self.parent),
            "driver": self.driver,
            "findings": [_finding_dict(item, began) for item in sorted(self.findings.values(), key=lambda item: item.time)],
            "moments": {moment.value: round(self.moments[moment] - began, 6) for moment in Moment if moment in self.moments},
            "reports": reports,
            "readies": readies,
            "names": {key: _name(known[key]) for key in sorted(mentioned) if key in known},
        }

    def as_dict(self) -> dict[str, Any]:
        """Plain values. ``at``: seconds on the boot clock; all other times are seconds after it (before it: negative)."""
        assert self.view is not None
        return {
            **self.sketch(),
            "view_id": self.view.view_id,
            "parent_id": self.view.parent_id,
            "cause": self.cause,
            "size": len(self.view),
            "removed": self._removals(),
            "joined": [member.id for member in self.joined[:SHOWN]],
            "ballot": None if self.ballot is None else list(self.ballot),
            "attempts": self.attempts,
            "quorum": list(self.quorum[:SHOWN]),
            "discounted": list(self.discounted[:SHOWN]),
            "phases": self.phases,
        }

    def _removals(self) -> list[dict[str, Any]]:
        """A reason for each removed member: received with the view, found by this member, or unknown."""
        told = {reason.member_id: reason for reason in self.reasons}
        return [_reason_dict(member.id, told.get(member.id) or self._own_reason(member.id)) for member in self.removed[:SHOWN]]

    def _own_reason(self, member_id: str) -> Reason | None:
        for cause in _WEIGHT:
            if (member_id, _OF_CAUSE[cause]) in self.findings:
                return self.reason(Removal(member_id, cause))
        return None


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
