"""The plan of the survivors of a view change: a pure function of the view and the flush reports, equal at all members.

Virtual synchrony for allreduce. Every call ends all-to-all, so a member that finishes an operation of call k + 1 knows that all
members finished call k: survivors' counts differ by at most one. If any survivor finished call K, all adopt its result; else
all redo call K from their untouched inputs. A call is therefore averaged over one member set on every survivor, or on none.

A member that is further behind did not act with the others: it goes on like a joiner, with their state. A joiner that *follows*
(``follow``) has finished calls like every member, but has no state yet, and may not know the call in which it takes part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum

import msgpack

from consensus import View

REPORT_LIMIT = 512
"""Bytes; a longer report is refused."""

NAMED = 8
"""How many members a report blames at most. If there are more, the next view's reports name the next ones."""

_VERSION = 7
_SHAPE: tuple[type, ...] = (
    *(int, int, int, bytes, bytes, str, bool, bool, bool, bool, bytes, bool, bool, tuple, str),
    *(int, bytes),
)


@dataclass(frozen=True, slots=True)
class Report:
    """The place of one member's data plane when it froze."""

    finished: int
    """Number of the last finished call."""
    current: int
    """Number of the call in progress, 0 for none."""
    step: int
    """Optimizer steps granted so far."""
    last_signature: bytes
    """Signature of call ``finished``; empty if it was declined, so that it has no result."""
    current_signature: bytes
    """Signature of call ``current``; empty: none, or unknown, as at a newcomer."""
    state_id: str
    """Id of the member from whose state this member's state descends; empty: unknown."""
    founder: bool
    """True if the member was in the founding view: its own initial state is as good as any founder's."""
    blank: bool
    """True if the member joined and has not finished a call yet: its counts come from a plan, and it has no results."""
    has_state: bool
    """True if the program registered state."""
    late: bool = False
    """True if its backup worker finished calls that the program has yet to take over: it will have the state, but later."""
    drawn: bytes = b""
    """The data that the member has drawn, as its sampler reports; empty if it draws nothing."""
    newcomer: bool = False
    """True if the program has not finished a call of its own since admission: it only took part in the others' calls."""
    spoilt: bool = False
    """True if the program has changed the result of call ``finished`` in place, so that nobody can get it from here."""
    blamed: tuple[str, ...] = ()
    """Ids of members that have to stop, as the trailers of the newest attempt show; the first ``NAMED`` of them. They may not
    have read them: once a member has, it ends the attempt for all."""
    dispute: str = ""
    """Why: a key of ``DISPUTES``."""
    held: int = 0
    """The call after ``finished`` if its result is here, though other members of this replica may not have theirs; else 0."""
    held_signature: bytes = b""
    """Its signature."""

    def encode(self) -> bytes:
        """As bytes, at most ``REPORT_LIMIT``."""
        data: bytes = msgpack.packb((_VERSION, *(getattr(self, each.name) for each in fields(self))))
        return data

    @classmethod
    def decode(cls, data: bytes) -> Report:
        """The inverse of :meth:`encode`; ValueError for anything else."""
        if len(data) > REPORT_LIMIT:
            raise ValueError(f"flush report of {len(data)} bytes; at most {REPORT_LIMIT} are accepted")
        try:
            version, *values = msgpack.unpackb(data, use_list=False)
        except Exception as error:  # noqa: BLE001 - msgpack raises many kinds; all mean the same here
            raise ValueError(f"flush report is not readable: {error}") from None
        if version != _VERSION:
            raise ValueError(f"flush report of version {version}, this is version {_VERSION}: run one release everywhere")
        if len(values) != len(_SHAPE) or any(type(v) is not t for v, t in zip(values, _SHAPE, strict=True)):
            raise ValueError("flush report has the wrong shape")
        report = cls(*values)
        if not all(isinstance(member_id, str) for member_id in report.blamed) or report.dispute not in ("", *DISPUTES):
            raise ValueError("flush report blames nobody that there is, or for nothing")
        if min(report.finished, report.current, report.step, report.held) < 0:
            raise ValueError("flush report has negative counts")
        return report


DISPUTES = {
    "operations": ("with different tensors or operations", "call the same things in the same order everywhere"),
    "samples": (
        "with different ideas of who draws which samples",
        "give ElasticSampler the same dataset, batch size and seed everywhere, and call set_epoch with the same epochs",
    ),
}
"""What members can differ in when they enter a call: in words, and the remedy."""


class FaultKind(Enum):
    """Why a view cannot be acted in."""

    MISMATCH = "mismatch"
    STATE_LOST = "state lost"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the ids of the members that have to stop because of it; the others go on without them."""

    kind: FaultKind
    blamed: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SalvagePlan:
    """What the members of a view do first. Equal at all members."""

    call: int
    """K: the newest call that any survivor finished. All members go on with call K + 1."""
    step: int
    """Steps granted once call K is finished."""
    signature: bytes = b""
    """The signature of call K; empty if no member knows it, as where it was declined."""
    adoptions: tuple[tuple[str, str], ...] = ()
    """Pairs (adopter, donor): the adopter takes the result of call K from the donor."""
    blank: tuple[str, ...] = ()
    """Joiners that have finished no call yet, and healed members: they count call K as finished."""
    newcomers: tuple[str, ...] = ()
    """Blank members, and those that only took part in others' calls since admission: their calls say nothing about the job."""
    healed: tuple[str, ...] = ()
    """Members that were more than one call behind, or behind with a call whose result nobody can give any more: their state is
    worthless, and they get the state like joiners."""
    entered: bytes = b""
    """The signature of call K + 1, if all members of the view have said that they are in that very call; else empty."""
    current_state_id: str = ""
    """The id of the valid state; empty if no member has it."""
    holders: tuple[str, ...] = ()
    """Members with the valid state, in seniority order; late members only if there are no others."""
    drawn: tuple[tuple[str, bytes], ...] = ()
    """Pairs (drawer, a sampler's report) of the members that go on drawing samples. The drawer is the member, or its replica,
    which then has a pair for each of its processes."""
    fault: Fault | None = None

    def donor_of(self, member_id: str) -> str | None:
        """The member that gives ``member_id`` the result of call K; None if ``member_id`` needs none."""
        return dict(self.adoptions).get(member_id)

    def adopters_of(self, member_id: str) -> tuple[str, ...]:
        """The members to which ``member_id`` gives the result of call K."""
        return tuple(adopter for adopter, donor in self.adoptions if donor == member_id)


def plan(view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
    """The plan for ``view``. ``reports``: those of the continuing members. ValueError if a report is not readable."""
    return planned(view, {member_id: Report.decode(reports[member_id]) for member_id in view.ids if member_id in reports})


def planned(view: View, known: Mapping[str, Report]) -> SalvagePlan:
    """As ``plan``, from reports that were read."""
    if not view.parent_id:
        return SalvagePlan(0, 0, current_state_id=view.ids[0], holders=(view.ids[0],))
    acted = {member_id: report for member_id, report in known.items() if not report.blank} or _substitutes(known)
    if not acted:
        text = "every member that held the state ended before it was passed on: start anew, from a checkpoint if there is one"
        return SalvagePlan(0, 0, blank=view.ids, newcomers=view.ids, fault=Fault(FaultKind.STATE_LOST, view.ids, text))
    call = max(report.finished for report in acted.values())
    finishers = [member_id for member_id, report in acted.items() if report.finished == call]
    donors = [member_id for member_id in finishers if not acted[member_id].spoilt]
    oldest = call - 1 if donors else call  # without a donor, nobody can go on from the call before
    healed = tuple(member_id for member_id, report in acted.items() if report.finished < oldest and report.has_state)
    for member_id in healed:
        del acted[member_id]
    blank = tuple(member_id for member_id in view.ids if member_id not in acted or acted[member_id].blank)
    newcomers = tuple(m for m in view.ids if m in blank or known[m].newcomer)
    drawing = {m: report.drawn for m, report in known.items() if report.drawn and (m in acted or report.finished == call)}
    adopters = [member_id for member_id, report in acted.items() if report.finished < call]
    current_state_id, holders = _current_state_id(acted)
    if not current_state_id:  # all who act only follow; a joiner in the same call may have loaded the state they lack
        fresh = {m: report for m, report in known.items() if report.blank and report.state_id and report.finished == call}
        current_state_id, holders = _current_state_id(fresh)
    leader = next((member_id for member_id in holders if known[member_id].finished == call), finishers[0])
    return SalvagePlan(
        call=call,
        step=known[leader].step,
        signature=acted[finishers[0]].last_signature,
        adoptions=tuple((adopter, donors[i % len(donors)]) for i, adopter in enumerate(adopters)) if donors else (),
        blank=blank,
        newcomers=newcomers,
        healed=healed,
        entered=_entered(view, call, known),
        current_state_id=current_state_id,
        holders=holders,
        drawn=tuple(drawing.items()),
        fault=_mismatch(call, acted, finishers, adopters, newcomers)
        or _blamed(view, call, known)
        or _lost(view, acted, healed, current_state_id)
        or _ungiven(call, adopters, donors),
    )


def blame(signatures: Mapping[str, bytes], newcomers: Sequence[str] = ()) -> tuple[str, ...]:
    """The members that have to stop because members entered one call with different signatures; empty if all agree.

    If the veterans agree, the newcomers that differ from them. Else all members outside of the absolute majority. Without such
    a majority all members.
    """
    if len(set(signatures.values())) < 2:
        return ()
    veterans = {value for member_id, value in signatures.items() if member_id not in newcomers}
    if len(veterans) == 1:
        right = next(iter(veterans))
    else:
        right, count = Counter(signatures.values()).most_common(1)[0]
        if count * 2 <= len(signatures):
            return tuple(signatures)
    return tuple(member_id for member_id, value in signatures.items() if value != right)


def _substitutes(known: Mapping[str, Report]) -> dict[str, Report]:
    """Joiners that can go on by themselves although no member that finished a call is left.

    These are the joiners that loaded the state on entry to the newest call; if no state was registered, those with the newest
    count.
    """
    loaded = {member_id: report for member_id, report in known.items() if report.state_id}
    if loaded or any(report.has_state for report in known.values()):
        newest = max((report.finished for report in loaded.values()), default=0)
        return {member_id: report for member_id, report in loaded.items() if report.finished == newest}
    newest = max((report.finished for report in known.values()), default=0)
    return {member_id: report for member_id, report in known.items() if report.finished == newest}


def _current_state_id(acted: Mapping[str, Report]) -> tuple[str, tuple[str, ...]]:
    """The id of the valid state, and its holders. If no member has loaded a state, a founder's own initial state is valid.

    A learner has no such id, and is no founder. If only some founders have loaded a checkpoint so far, those are further.
    """
    furthest = sorted(acted.values(), key=lambda report: -report.step)  # a stable sort: by seniority where steps are equal
    state_id = next((report.state_id for report in furthest if report.state_id), "")
    if state_id:
        holders = [member_id for member_id, report in acted.items() if report.state_id == state_id]
        return state_id, tuple([member_id for member_id in holders if not acted[member_id].late] or holders)
    founder = next((member_id for member_id, report in acted.items() if report.founder), "")
    return (founder, (founder,)) if founder else ("", ())


def _entered(view: View, call: int, known: Mapping[str, Report]) -> bytes:
    """See ``SalvagePlan.entered``. Those who do not know the call, or may be at another place than the others, are in none."""
    reports = [known[member_id] for member_id in view.ids if member_id in known]
    there = [r for r in reports if r.finished == call and r.current == call + 1 and not (r.blank or r.newcomer)]
    signatures = {report.current_signature for report in there}
    return signatures.pop() if len(there) == len(view.ids) and len(signatures) == 1 else b""


def _lost(view: View, acted: Mapping[str, Report], healed: Sequence[str], current_state_id: str) -> Fault | None:
    if current_state_id or not (healed or any(report.has_state for report in acted.values())):
        return None
    return Fault(FaultKind.STATE_LOST, view.ids, "all who held the trained state are gone: start anew from a checkpoint")


def _ungiven(call: int, adopters: Sequence[str], donors: Sequence[str]) -> Fault | None:
    """A fault of adopters that registered no state, which could have replaced the result that nobody can give."""
    if not adopters or donors:
        return None
    text = (
        f"all members that finished call {call} have changed its result in place, so it cannot be passed on; with "
        "register_state at every worker those behind would get the others' state"
    )
    return Fault(FaultKind.MISMATCH, tuple(adopters), text)


def _mismatch(
    call: int, acted: Mapping[str, Report], finishers: Sequence[str], adopters: Sequence[str], newcomers: Sequence[str]
) -> Fault | None:
    late = tuple(member_id for member_id in adopters if acted[member_id].finished < call - 1)
    if late:
        counts = ", ".join(f"{member_id} {report.finished}" for member_id, report in acted.items())
        text = (
            f"members are more than one call apart, so they did not act together: {counts}; with register_state at every "
            "worker those behind would get the others' state"
        )
        return Fault(FaultKind.MISMATCH, late, text)
    result = acted[finishers[0]].last_signature
    wrong = [m for m in finishers if acted[m].last_signature != result]
    if wrong:
        return Fault(FaultKind.MISMATCH, tuple(finishers), f"members finished call {call} with different tensors or operations")
    # A newcomer may not know yet which call it is in: an empty signature is no mismatch. A declined call fits any.
    entered = {m: acted[m].current_signature for m in adopters if acted[m].current == call}
    wrong = [m for m, signature in entered.items() if result and signature not in (result, b"")]
    if wrong:
        text = f"call {call}: {', '.join(wrong)} entered it with other tensors or another operation than those who finished it"
        return Fault(FaultKind.MISMATCH, tuple(wrong), text)
    entered = {m: acted[m].current_signature for m in finishers if acted[m].current == call + 1 and acted[m].current_signature}
    blamed = blame(entered, newcomers)
    if not blamed:
        return None
    what, _ = DISPUTES["operations"]
    text = f"call {call + 1}: members entered it {what}; it disagrees at {', '.join(blamed)}"
    return Fault(FaultKind.MISMATCH, blamed, text)


def _blamed(view: View, call: int, known: Mapping[str, Report]) -> Fault | None:
    """A fault of members that others have found to differ. They may be slower to read than the others are to end the attempt:
    without this, each view could end in the same way.
    """
    named = [report for member_id in view.ids if (report := known.get(member_id)) is not None and report.blamed]
    found = {member_id for report in named for member_id in report.blamed}
    blamed = tuple(member_id for member_id in view.ids if member_id in found)
    if not blamed:
        return None
    what, remedy = DISPUTES[named[0].dispute]
    text = f"call {call + 1}: members entered it {what}; it disagrees at {', '.join(blamed)}: {remedy}"
    return Fault(FaultKind.MISMATCH, blamed, text)
