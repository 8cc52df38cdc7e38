"""What the page shows, made from the statuses of members: plain values in, plain values out, no clock and no network.

Names and evidence come from other processes and stay text: the page never makes markup of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ROWS", "Job", "changes_of", "difference", "page_of", "waterfall"]

ROWS = 64
"""Above so many members only those with trouble are shown, and the first of the others."""
_REMARKS = 12
_STAGES = (
    ("settle", None, "proposed"),
    ("freeze", "proposed", "sent"),
    ("build", "sent", "complete"),
    ("activate", "complete", "activated"),
)
"""Parts of a view change: the name, the moment it begins (None: the first evidence) and the one it ends."""

_Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """What is known at one moment. ``entry``: the status of the member that was asked; ``others``: of each member, by id."""

    entry: _Values
    others: Mapping[str, _Values] = field(default_factory=dict)
    restarts_left: int | None = None
    rates: Mapping[str, float] = field(default_factory=dict)
    """Steps a second, by member id."""
    goodput: float | None = None
    """The part of the time seen that was not spent in view changes, 0 to 1."""


def page_of(job: Job) -> dict[str, Any]:
    """The page: facts of the job, one row a member, remarks. Raises nothing for missing parts."""
    entry = job.entry
    members = list(entry.get("members") or ())
    rows = {str(member["id"]): _row(job, place, member) for place, member in enumerate(members)}
    upper = _upper(entry)
    store = entry.get("store") or None
    return {
        "job": str(entry.get("job", "?")),
        "epoch": entry.get("active_epoch"),
        "changing": bool(entry.get("changing")),
        "size": len(members),
        "spares": len(entry.get("spares") or ()),
        "policy": entry.get("policy"),
        "step": max((row["step"] for row in rows.values() if row["step"] is not None), default=upper.get("step")),
        "rate": _rounded(max(job.rates.values(), default=None), 2),
        "goodput": _rounded(job.goodput, 4),
        "restarts_left": job.restarts_left,
        "asked": str(entry.get("member", "")),
        "store": None if store is None else {"url": store.get("url"), "away": store.get("away_since") is not None},
        "remarks": [
            {"time": note.get("time"), "level": note.get("level"), "text": f"{note.get('kind')}: {note.get('text')}"}
            for note in list(entry.get("notes") or ())[-_REMARKS:]
        ],
        "rows": {member_id: rows[member_id] for member_id in _shown(rows)},
        "hidden": max(0, len(rows) - ROWS),
    }


def _shown(rows: Mapping[str, _Values]) -> Iterable[str]:
    if len(rows) <= ROWS:
        return rows
    troubled = {member_id for member_id, row in rows.items() if row["trouble"]}
    first = [member_id for member_id in rows if member_id not in troubled][: max(0, ROWS - len(troubled))]
    chosen = {*list(troubled)[:ROWS], *first}
    return [member_id for member_id in rows if member_id in chosen]


def _row(job: Job, place: int, member: _Values) -> dict[str, Any]:
    own = str(member["id"])
    status = job.others.get(own) or (job.entry if job.entry.get("member") == own else {})
    upper, seen = _upper(status), _upper(job.entry)
    peer = (seen.get("peers") or {}).get(own) or {}
    times = (seen.get("step_times") or {}).get(own) or (upper.get("step_times") or {}).get(own) or {}
    call = upper.get("in_call") or {}
    stale = bool((status.get("ftlib") or {}).get("stale"))
    health = str(member.get("status", "?"))
    trouble = health != "alive" or bool(times.get("straggler")) or stale or bool(peer.get("late"))
    return {
        "place": place,
        "name": str((member.get("meta") or {}).get("name") or own[:6]),
        "address": str(member.get("address", "?")),
        "pid": str((member.get("meta") or {}).get("pid") or ""),
        "supervised": bool((member.get("meta") or {}).get("supervisor")),
        "rank": upper.get("rank"),
        "coordinator": job.entry.get("coordinator") == own,
        "status": health,
        "evidence": str(member.get("evidence") or ""),
        "step": upper.get("step"),
        "calls": upper.get("finished_calls", peer.get("finished")),
        "call": {"number": call.get("number"), "seconds": _rounded(call.get("seconds"), 1)} if call else None,
        "still": _rounded(peer.get("seconds"), 1),
        "last": _rounded(times.get("last"), 5),
        "median": _rounded(times.get("median"), 5),
        "straggler": bool(times.get("straggler")),
        "recovery": upper.get("recovery") or None,
        "following": bool(peer.get("following")),
        "checkpoint": upper.get("checkpoint_step") or None,
        "stale": stale,
        "trouble": trouble,
    }


def changes_of(history: Iterable[_Values]) -> dict[int, dict[str, Any]]:
    """Each view change by its epoch: the time, the sizes, the cause in words, how long it took, its waterfall."""
    found = {}
    for change in history:
        names = change.get("names") or {}
        gone = [f"without {_named(names, item['id'])} ({item.get('cause') or '?'})" for item in change.get("removed") or ()]
        come = [f"with {_named(names, member_id)}" for member_id in change.get("joined") or ()]
        if change.get("cause") == "founded":
            come = [f"founded by {', '.join(_named(names, member_id) for member_id in change.get('joined') or ())}"]
        epoch = int(change["epoch"])
        found[epoch] = {
            "epoch": epoch,
            "time": change.get("time"),
            "before": change.get("size_before"),
            "size": change.get("size"),
            "cause": change.get("cause"),
            "text": "; ".join([*gone, *come]) or "the same members",
            "total": (change.get("phases") or {}).get("total"),
            "active": "activated" in (change.get("moments") or {}),
            "bars": waterfall(change.get("moments") or {}),
        }
    return found


def waterfall(moments: Mapping[str, float]) -> list[dict[str, Any]]:
    """The parts of a change that took place, each with its beginning and end in seconds from the first evidence."""
    bars = []
    for name, begin, end in _STAGES:
        if end in moments and (begin is None or begin in moments):
            start = 0.0 if begin is None else moments[begin]
            if moments[end] > start or name != "settle":
                bars.append({"name": name, "from": start, "to": moments[end]})
    return bars


def difference(old: _Values, new: _Values) -> dict[str, Any]:
    """What has changed from one page to the next: facts that differ, rows that differ, the ids of rows that are gone."""
    facts = {key: value for key, value in new.items() if key != "rows" and old.get(key) != value}
    before, after = old.get("rows") or {}, new["rows"]
    rows = {member_id: row for member_id, row in after.items() if before.get(member_id) != row}
    gone = [member_id for member_id in before if member_id not in after]
    patch = {"facts": facts, "rows": rows, "gone": gone}
    return {key: value for key, value in patch.items() if value}


def _upper(status: _Values) -> _Values:
    upper: _Values = status.get("ftlib") or {}
    return upper if "phase" in upper else {}


def _named(names: Mapping[str, _Values], member_id: str) -> str:
    return str((names.get(member_id) or {}).get("name") or member_id[:6])


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def known_addresses(statuses: Sequence[_Values]) -> list[str]:
    """Where members answer, as these statuses name them, each once."""
    return list(dict.fromkeys(str(member["address"]) for status in statuses for member in status.get("members") or ()))
