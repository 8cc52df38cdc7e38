"""Spans made of records: plain values in, plain values out, no clock, no network and nothing of OpenTelemetry.

The ids of traces follow from what all members know: the job and the view, or the number of the call. So the spans of all
members meet in one trace, and nothing is sent along with any message.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...common.traces import CallFacts, CallRecord, CheckpointRecord, FetchRecord, RecoveryRecord, SendRecord, ViewRecord

SLOW = 4.0
"""A call is slow that takes so many times the median of the last ones,"""
LEAST = 0.05
"""and at least so many seconds."""
_RECENT, _FEWEST = 256, 16

Attribute = str | int | float | bool | Sequence[str]


@dataclass(frozen=True, slots=True)
class Event:
    """A moment within a span. ``time``: wall clock, in seconds."""

    name: str
    time: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One span with those within it. Times are wall clock, in seconds."""

    name: str
    trace_id: int
    began: float
    ended: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    events: Sequence[Event] = ()
    children: Sequence[Span] = ()
    links: Sequence[int] = ()
    """Traces that have to do with it."""
    root: bool = False
    """True if this is the span that all members' spans in this trace have for a parent; its id is ``root_of(trace_id)``."""
    error: str = ""


def trace_of(*facts: object) -> int:
    """The id of the trace of what ``facts`` name: 16 bytes, the same at every member."""
    return int.from_bytes(hashlib.blake2b("\0".join(map(str, facts)).encode(), digest_size=16).digest(), "big") or 1


def root_of(trace_id: int) -> int:
    """The id of the span that stands above those of all members: 8 bytes."""
    return int.from_bytes(hashlib.blake2b(trace_id.to_bytes(16, "big"), digest_size=8).digest(), "big") or 1


# --- view changes ----------------------------------------------------------------------------------------------------------

_PHASES = ("settle", "freeze", "build", "activate")


def view_change(job: str, member: str, record: ViewRecord, change: Mapping[str, Any], ahead: float) -> list[Span]:
    """The spans of one view change as this member saw it; the driver adds the root, which spans all of it as it knows it.

    ``change``: the member's record of it, as in ``Consensus.status()["history"]``. ``ahead``: wall clock minus the clock of
    ``record``, seconds.
    """
    began, view_id = float(change["time"]), str(change["view_id"])
    phases = change.get("phases") or {}
    moments = change.get("moments") or {}
    ended = began + float(moments.get("activated", phases.get("total", 0.0)))
    trace_id = trace_of(job, "view", view_id)
    names = change.get("names") or {}
    attributes: dict[str, Attribute] = {
        "ftlib.job": job,
        "ftlib.member": member,
        "ftlib.epoch": int(change["epoch"]),
        "ftlib.view_id": view_id,
        "ftlib.cause": str(change.get("cause")),
        "ftlib.size_before": int(change.get("size_before") or 0),
        "ftlib.size": int(change.get("size") or record.size),
        "ftlib.rank": record.rank,
        "ftlib.driver": str(change.get("driver") or ""),
        "ftlib.removed": [_named(names, str(item["id"])) for item in change.get("removed") or ()],
        "ftlib.joined": [_named(names, str(each)) for each in change.get("joined") or ()],
    }
    children = list(_phases(trace_id, began, phases))
    if record.frozen:
        children.append(Span("paused", trace_id, record.frozen + ahead, record.active + ahead, {"ftlib.member": member}))
    own = Span("view change", trace_id, began, ended, attributes, _findings(change, began, names), children)
    if change.get("driver") != member:
        return [own]
    title = f"epoch {change['epoch']}: {attributes['ftlib.size_before']} -> {attributes['ftlib.size']} members"
    shared = {key: value for key, value in attributes.items() if key not in ("ftlib.member", "ftlib.rank")}
    return [Span(title, trace_id, began, ended, shared, _arrivals(change, began, names), root=True), own]


def _phases(trace_id: int, began: float, phases: Mapping[str, Any]) -> Iterable[Span]:
    for name in _PHASES:
        if name in phases:
            ended = began + float(phases[name])
            yield Span(name, trace_id, began, ended)
            began = ended


def _findings(change: Mapping[str, Any], began: float, names: Mapping[str, Any]) -> list[Event]:
    return [
        Event(
            str(found["kind"]),
            began + float(found["after"]),
            {
                "ftlib.accused": _named(names, str(found["accused"])),
                "ftlib.source": _named(names, str(found["source"])),
                "ftlib.detail": str(found["detail"]),
            },
        )
        for found in change.get("findings") or ()
    ]


def _arrivals(change: Mapping[str, Any], began: float, names: Mapping[str, Any]) -> list[Event]:
    """When each member's report, and its READY, came to the driver."""
    found = [
        Event(kind, began + float(after), {"ftlib.member": _named(names, str(member))})
        for key, kind in _KINDS
        for member, after in (change.get(key) or {}).items()
    ]
    return sorted(found, key=lambda event: event.time)


_KINDS = (("reports", "reported"), ("readies", "ready"))


def _named(names: Mapping[str, Any], member_id: str) -> str:
    known = names.get(member_id) or {}
    return f"{known['name']} ({member_id[:6]})" if known.get("name") else member_id


# --- calls -----------------------------------------------------------------------------------------------------------------


class Calls:
    """Decides which calls get a span. Used by one thread."""

    def __init__(self, job: str, every: int) -> None:
        """``every``: one of so many calls is a sample, by its number, hence the same ones at all members; 0: none is."""
        self._job, self._every = job, every
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._redone = self._adopted = 0

    def dull(self, facts: CallFacts) -> bool:
        """Whether a call is worth no span, as its few numbers say; it is noted then. Others are for ``span``."""
        number, began, ended, redone, adopted = facts[0], facts[3], facts[4], facts[8], facts[9]
        if (
            redone > self._redone
            or adopted > self._adopted
            or ended - began > LEAST
            or (self._every and not number % self._every)
        ):
            return False
        self._redone, self._adopted = redone, adopted
        self._recent.append(ended - began)
        return True

    def span(self, record: CallRecord, member: str, ahead: float) -> Span | None:
        """The span of a call, if it is worth one."""
        took = record.ended - record.began
        why = []
        if record.redone > self._redone:
            why.append("redone")
        if record.adopted > self._adopted:
            why.append("adopted")
        if took > LEAST and len(self._recent) >= _FEWEST and took > SLOW * statistics.median(self._recent):
            why.append("slow")
        if self._every and record.number % self._every == 0:
            why.append("sampled")
        redone, self._redone, self._adopted = record.redone - self._redone, record.redone, record.adopted
        self._recent.append(took)
        if not why:
            return None
        attributes: dict[str, Attribute] = {
            "ftlib.job": self._job,
            "ftlib.member": member,
            "ftlib.call": record.number,
            "ftlib.why": why,
            "ftlib.bytes": record.nbytes,
            "ftlib.epoch": record.epoch,
            "ftlib.size": record.size,
            "ftlib.redone": redone,
        }
        links = [trace_of(self._job, "view", record.view_id)] if record.view_id and {"redone", "adopted"} & set(why) else []
        trace_id = trace_of(self._job, "call", record.number)
        return Span(f"call {record.kind}", trace_id, record.began + ahead, record.ended + ahead, attributes, links=links)


# --- states ----------------------------------------------------------------------------------------------------------------


def recovery(job: str, record: RecoveryRecord, fetched: Iterable[FetchRecord], ahead: float) -> Span:
    """The span of a training state that came, with one within it for each part and its donor."""
    trace_id = trace_of(job, "recovery", record.member)
    attributes: dict[str, Attribute] = {
        "ftlib.job": job,
        "ftlib.member": record.member,
        "ftlib.bytes": record.nbytes,
        "ftlib.replayed": record.replayed,
        "ftlib.call": record.call,
        "ftlib.waited_for": record.waited_for,
    }
    children = [
        Span(
            _part(part),
            trace_id,
            part.began + ahead,
            part.ended + ahead,
            {"ftlib.donor": part.donor, "ftlib.bytes": part.nbytes},
            error=part.error,
        )
        for part in fetched
    ]
    links = [trace_of(job, "view", record.view_id)] if record.view_id else []
    return Span("recovery", trace_id, record.began + ahead, record.ended + ahead, attributes, (), children, links)


def sent(job: str, member: str, record: SendRecord, ahead: float) -> Span:
    """The span of a part of the state that this member gave: in the trace of the joiner's recovery."""
    attributes: dict[str, Attribute] = {
        "ftlib.job": job,
        "ftlib.member": member,
        "ftlib.joiner": record.joiner,
        "ftlib.bytes": record.nbytes,
    }
    trace_id = trace_of(job, "recovery", record.joiner)
    name = f"send {_part(record)}"
    return Span(name, trace_id, record.began + ahead, record.ended + ahead, attributes, error=record.error)


def _part(record: FetchRecord | SendRecord) -> str:
    return "whole state" if record.part < 0 else f"shard {record.part}"


def checkpoint(job: str, member: str, record: CheckpointRecord, ahead: float) -> Span:
    """The span of a checkpoint: it is written, then waits until a later call has finished."""
    trace_id = trace_of(job, "checkpoint", record.step, record.epoch)
    began, written, ended = record.began + ahead, record.written + ahead, record.ended + ahead
    attributes: dict[str, Attribute] = {
        "ftlib.job": job,
        "ftlib.member": member,
        "ftlib.step": record.step,
        "ftlib.epoch": record.epoch,
        "ftlib.bytes": record.nbytes,
    }
    parts = [Span("write", trace_id, began, written), Span("complete", trace_id, written, ended)] if not record.error else []
    return Span("checkpoint", trace_id, began, ended, attributes, (), parts, error=record.error)
