"""What the survivors of a view change do next: a pure function of the view and the flush reports, computed alike by all.

Virtual synchrony for allreduce. Every call ends all-to-all, so whoever finishes an operation of call k + 1 knows that everyone
finished k: survivors' counts differ by at most one. If any survivor finished call K, all adopt its result; else all redo it
from their untouched inputs. A call is therefore averaged over one member set on every survivor, or on none.

Whoever is further behind all the same did not act with the others: it goes on like a joiner, with their state. A joiner that
*follows* (``follow``) has finished calls like everybody, but has no state yet, and may not know what it takes part in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum

import msgpack

from consensus import View

REPORT_LIMIT = 512
"""Bytes; a longer report is refused."""

_VERSION = 3
_SHAPE: tuple[type, ...] = (int, int, int, bytes, bytes, str, bool, bool, bool, bool, bytes, bool)


@dataclass(frozen=True, slots=True)
class Report:
    """Where one member's data plane stood when it froze."""

    finished: int
    """Number of the last finished call."""
    current: int
    """Number of the call in progress, 0 for none."""
    step: int
    """Optimizer steps granted so far."""
    last_signature: bytes
    """Signature of call ``finished``."""
    current_signature: bytes
    """Signature of call ``current``; empty: none, or unknown, as at a newcomer."""
    origin: str
    """Whose state this member's descends from (a member id); empty: unknown."""
    founder: bool
    """Whether it was in the founding view: its own initial state is as good as any."""
    blank: bool
    """Whether it joined and has not finished a call yet: its counts are what a plan granted it, and it has no results."""
    has_state: bool
    """Whether the program registered state."""
    late: bool = False
    """Whether its deputy finished calls that its program has yet to take over: it will have the state, but not at once."""
    drawn: bytes = b""
    """What it has drawn of the data, as its sampler tells; empty where it draws nothing."""
    newcomer: bool = False
    """Whether its program has not finished a call of its own since it was let in: it only took part in the others'."""

    def encode(self) -> bytes:
        """As bytes, at most ``REPORT_LIMIT``."""
        data: bytes = msgpack.packb((_VERSION, *astuple(self)))
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
        if min(report.finished, report.current, report.step) < 0:
            raise ValueError("flush report has negative counts")
        return report


class FaultKind(Enum):
    """Why a view cannot be acted in."""

    MISMATCH = "mismatch"
    STATE_LOST = "state lost"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and who has to stop because of it (member ids); the others go on without them."""

    kind: FaultKind
    blamed: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class SalvagePlan:
    """What every member of a view does first. Equal at all of them."""

    call: int
    """K: the newest call that any survivor finished. Everybody goes on with call K + 1."""
    step: int
    """Steps granted once call K is finished."""
    signature: bytes = b""
    """That of call K; empty where nobody knows it."""
    adoptions: tuple[tuple[str, str], ...] = ()
    """Pairs (adopter, donor): the adopter takes the result of call K from the donor."""
    blank: tuple[str, ...] = ()
    """Joiners that have finished nothing yet, and whoever is healed: they count call K as finished."""
    newcomers: tuple[str, ...] = ()
    """Those, and who has only taken part in others' calls since it was let in: what they enter says nothing about the job."""
    healed: tuple[str, ...] = ()
    """Those who were more than one call behind: what they have is worth nothing, and they get the state like joiners."""
    authority: str = ""
    """The origin whose state is *the* state; empty where nobody holds any."""
    holders: tuple[str, ...] = ()
    """Members with that state, in seniority order; late ones only where there are no others."""
    drawn: tuple[tuple[str, bytes], ...] = ()
    """Pairs (member, what it has drawn) of those that go on drawing from the data."""
    fault: Fault | None = None

    def donor_of(self, member_id: str) -> str | None:
        """Who gives ``member_id`` the result of call K; None where it has it."""
        return dict(self.adoptions).get(member_id)

    def adopters_of(self, member_id: str) -> tuple[str, ...]:
        """To whom ``member_id`` gives it."""
        return tuple(adopter for adopter, donor in self.adoptions if donor == member_id)


def plan(view: View, reports: Mapping[str, bytes]) -> SalvagePlan:
    """The plan for ``view``; ``reports``: those of the continuing members. ValueError if one is not readable."""
    if not view.parent_id:
        return SalvagePlan(0, 0, authority=view.ids[0], holders=(view.ids[0],))
    known = {member_id: Report.decode(reports[member_id]) for member_id in view.ids if member_id in reports}
    acted = {member_id: report for member_id, report in known.items() if not report.blank} or _substitutes(known)
    if not acted:
        text = "every member that held the state ended before it was passed on: start anew, from a checkpoint if there is one"
        return SalvagePlan(0, 0, blank=view.ids, newcomers=view.ids, fault=Fault(FaultKind.STATE_LOST, view.ids, text))
    call = max(report.finished for report in acted.values())
    healed = tuple(member_id for member_id, report in acted.items() if report.finished < call - 1 and report.has_state)
    for member_id in healed:
        del acted[member_id]
    blank = tuple(member_id for member_id in view.ids if member_id not in acted or acted[member_id].blank)
    donors = [member_id for member_id, report in acted.items() if report.finished == call]
    newcomers = tuple(m for m in view.ids if m in blank or known[m].newcomer)
    drawing = {m: report.drawn for m, report in known.items() if report.drawn and (m in acted or report.finished == call)}
    adopters = [member_id for member_id, report in acted.items() if report.finished < call]
    authority, holders = _authority(acted)
    if not authority:  # those who act follow only, and a joiner may have loaded what they lack, in the call they are in
        fresh = {m: report for m, report in known.items() if report.blank and report.origin and report.finished == call}
        authority, holders = _authority(fresh)
    leader = next((member_id for member_id in holders if known[member_id].finished == call), donors[0])
    return SalvagePlan(
        call=call,
        step=known[leader].step,
        signature=acted[donors[0]].last_signature,
        adoptions=tuple((adopter, donors[i % len(donors)]) for i, adopter in enumerate(adopters)),
        blank=blank,
        newcomers=newcomers,
        healed=healed,
        authority=authority,
        holders=holders,
        drawn=tuple(drawing.items()),
        fault=_mismatch(call, acted, donors, adopters, newcomers) or _lost(view, acted, healed, authority),
    )


def blame(signatures: Mapping[str, bytes], newcomers: Sequence[str] = ()) -> tuple[str, ...]:
    """Who has to stop where members entered one call with different signatures; empty where they agree.

    Newcomers that differ from agreeing veterans are alone to blame; else whoever is not with the absolute majority; with no
    such majority everybody.
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
    """Joiners that can go on by themselves although nobody is left who finished a call.

    Those that had loaded the state on entry to the newest call; where nothing was registered, those that knew the count.
    """
    loaded = {member_id: report for member_id, report in known.items() if report.origin}
    if loaded or any(report.has_state for report in known.values()):
        newest = max((report.finished for report in loaded.values()), default=0)
        return {member_id: report for member_id, report in loaded.items() if report.finished == newest}
    newest = max((report.finished for report in known.values()), default=0)
    return {member_id: report for member_id, report in known.items() if report.finished == newest}


def _authority(acted: Mapping[str, Report]) -> tuple[str, tuple[str, ...]]:
    """The origin that counts and who holds it. A founder's own initial state will do where nobody loaded any yet.

    Whoever follows has none, and is no founder. Where some founders have loaded a checkpoint and others not yet, those who have
    are further.
    """
    furthest = sorted(acted.values(), key=lambda report: -report.step)  # a stable sort: by seniority where steps are equal
    origin = next((report.origin for report in furthest if report.origin), "")
    if origin:
        holders = [member_id for member_id, report in acted.items() if report.origin == origin]
        return origin, tuple([member_id for member_id in holders if not acted[member_id].late] or holders)
    founder = next((member_id for member_id, report in acted.items() if report.founder), "")
    return (founder, (founder,)) if founder else ("", ())


def _lost(view: View, acted: Mapping[str, Report], healed: Sequence[str], authority: str) -> Fault | None:
    if authority or not (healed or any(report.has_state for report in acted.values())):
        return None
    return Fault(FaultKind.STATE_LOST, view.ids, "all who held the trained state are gone: start anew from a checkpoint")


def _mismatch(
    call: int, acted: Mapping[str, Report], donors: Sequence[str], adopters: Sequence[str], newcomers: Sequence[str]
) -> Fault | None:
    late = tuple(member_id for member_id in adopters if acted[member_id].finished < call - 1)
    if late:
        counts = ", ".join(f"{member_id} {report.finished}" for member_id, report in acted.items())
        text = (
            f"members are more than one call apart, so they did not act together: {counts}; with register_state at every "
            "worker those behind would get the others' state"
        )
        return Fault(FaultKind.MISMATCH, late, text)
    result = acted[donors[0]].last_signature
    wrong = [m for m in donors if acted[m].last_signature != result]
    if wrong:
        return Fault(FaultKind.MISMATCH, tuple(donors), f"members finished call {call} with different tensors or operations")
    # A newcomer may not know yet what it is in: nothing is no other signature.
    wrong = [m for m in adopters if acted[m].current == call and acted[m].current_signature not in (result, b"")]
    if wrong:
        text = f"call {call}: {', '.join(wrong)} entered it with other tensors or another operation than those who finished it"
        return Fault(FaultKind.MISMATCH, tuple(wrong), text)
    entered = {m: acted[m].current_signature for m in donors if acted[m].current == call + 1 and acted[m].current_signature}
    blamed = blame(entered, newcomers)
    if not blamed:
        return None
    text = f"call {call + 1}: members entered it with different tensors or operations; it disagrees at {', '.join(blamed)}"
    return Fault(FaultKind.MISMATCH, blamed, text)
