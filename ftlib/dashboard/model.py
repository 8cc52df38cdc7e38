"""What the page shows, made from the statuses of members: plain values in, plain values out, no clock and no network.

Names and evidence come from other processes and stay text: the page never makes markup of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROWS = 64
"""A page has so many rows of members that are well, from the one that the viewer has chosen on, and those in trouble."""
_REMARKS = 12
_HUGE = 2.0**63
"""No count and no time is so large; what is not below it may be infinite, or no number at all."""
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


def page_of(job: Job, first: int = 0) -> dict[str, Any]:
    """The page: facts of the job, rows of members from place ``first`` on, remarks. Raises nothing for missing parts."""
    rows = rows_of(job)
    return {**facts_of(job, rows), **shown(rows, first)}


def rows_of(job: Job) -> dict[str, dict[str, Any]]:
    """The row of every member, by its id."""
    return {str(member["id"]): _row(job, place, member) for place, member in enumerate(job.entry.get("members") or ())}


def check_own(status: _Values) -> None:
    """TypeError where what a member says of itself has parts of other kinds than its row is made of. Parts may be missing."""
    upper = _part(status, "ftlib")
    call, recovery, times = _part(upper, "in_call"), _part(upper, "recovery"), _part(upper, "step_times")
    wanted = (
        (upper, ("rank", "step", "finished_calls", "checkpoint_step")),
        (call, ("number", "seconds")),
        (recovery, ("total", "got", "left", "pending")),
        *((_part(times, member_id), ("last", "median")) for member_id in times),
    )
    for part, keys in wanted:
        for key in keys:
            value = part.get(key)
            if value is not None and not (isinstance(value, int | float) and abs(value) < _HUGE):
                raise TypeError(f"{key}: a number is wanted, not {value!r:.80}")


def _part(values: _Values, key: str) -> _Values:
    part = values.get(key) or {}
    if not isinstance(part, Mapping):
        raise TypeError(f"{key}: named values are wanted, not {part!r:.80}")
    return part


def facts_of(job: Job, rows: Mapping[str, _Values]) -> dict[str, Any]:
    """What the page says of the job as a whole."""
    entry = job.entry
    members = list(entry.get("members") or ())
    upper = _upper(entry)
    return {
        "job": str(entry.get("job", "?")),
        "epoch": entry.get("active_epoch"),
        "view": entry.get("epoch"),  # of the members below, which may not be active yet: orders name it
        "changing": bool(entry.get("changing")),
        "size": len(members),
        "spares": len(entry.get("spares") or ()),
        "policy": entry.get("policy"),
        "step": max((row["step"] for row in rows.values() if row["step"] is not None), default=upper.get("step")),
        "rate": _rounded(max(job.rates.values(), default=None), 2),
        "goodput": _rounded(job.goodput, 3),
        "min_size": upper.get("min_size"),
        "quorum": _quorum(entry.get("policy"), len(members)),
        "quorum_after": _quorum(entry.get("policy"), len(members) - 1),
        "checkpoint": max((row["checkpoint"] for row in rows.values() if row["checkpoint"]), default=None),
        "restarts_left": job.restarts_left,
        "asked": str(entry.get("member", "")),
        "store": _store(entry.get("store")),
        "remarks": [
            {"time": note.get("time"), "level": note.get("level"), "text": f"{note.get('kind')}: {note.get('text')}"}
            for note in list(entry.get("notes") or ())[-_REMARKS:]
        ],
    }


def shown(rows: Mapping[str, _Values], first: int = 0) -> dict[str, Any]:
    """Those rows that a viewer sees: ``ROWS`` from place ``first`` on, and as many of those in trouble elsewhere."""
    first = max(0, min(first, len(rows) - 1)) // ROWS * ROWS
    if len(rows) <= ROWS:
        return {"first": 0, "hidden": 0, "rows": dict(rows)}
    here = set(list(rows)[first : first + ROWS])
    troubled = [member_id for member_id, row in rows.items() if row["trouble"] and member_id not in here][:ROWS]
    chosen = here.union(troubled)
    seen = {member_id: row for member_id, row in rows.items() if member_id in chosen}
    return {"first": first, "hidden": len(rows) - len(seen), "rows": seen}


def _quorum(policy: object, size: int) -> int | None:
    """How many of so many members a view change needs; None where none is counted, as a store decides, or any may."""
    return size // 2 + 1 if policy == "majority" and size > 0 else None


def _store(store: _Values | None) -> dict[str, Any] | None:
    """Where the store is, whether it is away, and how many requests it has not answered; None if there is none."""
    if not store:
        return None
    unanswered = sum(int(each.get("away") or 0) for each in (store.get("errands") or {}).values())
    return {"url": store.get("url"), "away": store.get("away_since") is not None, "unanswered": unanswered}


def _row(job: Job, place: int, member: _Values) -> dict[str, Any]:
    own = str(member["id"])
    status = job.others.get(own) or (job.entry if job.entry.get("member") == own else {})
    upper, seen = _upper(status), _upper(job.entry)
    peer = (seen.get("peers") or {}).get(own) or {}
    times = (seen.get("step_times") or {}).get(own) or (upper.get("step_times") or {}).get(own) or {}
    call = upper.get("in_call") or {}
    following = bool(peer.get("following"))
    stale = bool((status.get("ftlib") or {}).get("stale"))
    health = str(member.get("status", "?"))
    trouble = health != "alive" or bool(times.get("straggler")) or stale or bool(peer.get("late")) or following
    return {
        "place": place,
        "name": str((member.get("meta") or {}).get("name") or own[:6]),
        "address": str(member.get("address", "?")),
        "pid": str((member.get("meta") or {}).get("pid") or ""),
        "supervised": bool((member.get("meta") or {}).get("supervisor")),
        "rank": place if upper.get("rank") is None else upper["rank"],
        "coordinator": job.entry.get("coordinator") == own,
        "status": health,
        "evidence": str(member.get("evidence") or ""),
        "step": upper.get("step", None if following else seen.get("step")),
        "calls": upper.get("finished_calls", peer.get("finished")),
        "call": {"number": call.get("number"), "seconds": _rounded(call.get("seconds"), 1)} if call else None,
        "still": _rounded(peer.get("seconds"), 1),
        "last": _rounded(times.get("last"), 5),
        "median": _rounded(times.get("median"), 5),
        "straggler": bool(times.get("straggler")),
        "recovery": _recovery(upper.get("recovery")),
        "following": following,
        "checkpoint": upper.get("checkpoint_step") or None,
        "stale": stale,
        "trouble": trouble,
    }


def _recovery(progress: _Values | None) -> dict[str, Any] | None:
    """How far a member has got that gets the state: bytes in all and so far, seconds left; 0 and None where that is unknown."""
    if not progress:
        return None
    total, got, left = int(progress.get("total") or 0), int(progress.get("got") or 0), progress.get("left")
    return {"total": total, "got": got, "left": _rounded(left, 1), "pending": int(progress.get("pending") or 0)}


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
    """What has changed from one page to the next: facts that differ, what differs in each row, ids of rows that are gone."""
    facts = {key: value for key, value in new.items() if key != "rows" and old.get(key) != value}
    before, after = old.get("rows") or {}, new["rows"]
    rows = {
        member_id: {key: value for key, value in row.items() if before[member_id].get(key) != value}
        if member_id in before
        else row
        for member_id, row in after.items()
        if before.get(member_id) != row
    }
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
