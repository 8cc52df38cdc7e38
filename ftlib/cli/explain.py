"""``ftlib explain``: the evidence that led to each view, with its source, and how the time of each change was spent.

Every member keeps its own record of the newest changes (``history`` in its status). The driver of a change knows most, since
it got all reports and READYs. So the requested member gives its record, and each driver gives its own if it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..errors import FTLibError
from .status import fetch_status

_DRIVER_TIMEOUT = 2.0
"""Seconds to wait for a driver's record; the driver may be gone."""

_Change = Mapping[str, Any]
_DECISIVE = ("proof", "silence", "unready", "severed", "leave", "frozen")


@dataclass(frozen=True, slots=True)
class Account:
    """The record of one view change, from the best informed member that answered."""

    change: _Change
    teller: str
    """Id of the member whose record it is."""

    missing: str = ""
    """Why it is not the driver's own record; empty if it is."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**self.change, "told_by": self.teller, "driver_missing": self.missing or None}


@dataclass(frozen=True, slots=True)
class Story:
    """The history of one member: changes that led to a view, oldest first, and the change under way."""

    accounts: tuple[Account, ...]
    under_way: _Change | None = None

    def as_list(self) -> list[dict[str, Any]]:
        """For programs: one record for each change; ``under_way`` is true in a change that has led to no active view yet."""
        told = [account.as_dict() for account in self.accounts]
        return told if self.under_way is None else [*told, {**self.under_way, "under_way": True}]


def fetch_story(
    address: str,
    timeout: float = 5.0,
    *,
    epoch: int | None = None,
    last: int | None = None,
    fetch: Callable[[str, float], dict[str, Any]] = fetch_status,
) -> Story:
    """Return changes that the member at ``address`` knows: the one to ``epoch``, or the ``last`` ones and the one under way.

    Raises FTLibError if the member does not answer, keeps no history, or no longer knows that epoch.
    """
    status = fetch(address, timeout)
    changes = status.get("history")
    if not isinstance(changes, list) or not all(isinstance(change, dict) and "epoch" in change for change in changes):
        raise FTLibError(f"the member at {address} keeps no history of view changes: does it run an older version?")
    under_way = status.get("under_way") if epoch is None else None
    if under_way is not None and not isinstance(under_way, dict):
        under_way = None
    if epoch is not None:
        kept = [change["epoch"] for change in changes]
        changes = [change for change in changes if change["epoch"] == epoch]
        if not changes:
            known = f"{min(kept)} to {max(kept)}" if kept else "none yet"
            raise FTLibError(f"the member at {address} knows nothing of epoch {epoch}; it knows {known}")
    elif last is not None:
        changes = changes[-last:] if last > 0 else []
    own = str(status.get("member") or status.get("id"))
    who = {"name": (status.get("meta") or {}).get("name"), "address": status.get("address")}
    try:
        for change in changes:
            change["names"].setdefault(own, who)
        return Story(tuple(_with_drivers(own, changes, min(timeout, _DRIVER_TIMEOUT), fetch)), under_way)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FTLibError(f"the history of {address} cannot be read ({error!r}): does it run another version?") from None


def _with_drivers(
    own: str, changes: list[dict[str, Any]], timeout: float, fetch: Callable[[str, float], dict[str, Any]]
) -> list[Account]:
    addresses = {
        change["driver"]: change["names"][change["driver"]]["address"]
        for change in changes
        if change["driver"] not in ("", own) and change["driver"] in change["names"]
    }

    def ask(item: tuple[str, str]) -> dict[str, Any] | str:
        driver, address = item
        try:
            answer = fetch(address, timeout)
        except FTLibError as error:
            return str(error).split(": ")[0]  # without the remedy, which is for a user who names that member
        return answer if answer.get("member") == driver else f"another lifetime answers at {address}"

    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(addresses, pool.map(ask, addresses.items()), strict=True))
    return [_best(own, change, answers) for change in changes]


def _best(own: str, change: dict[str, Any], answers: Mapping[str, dict[str, Any] | str]) -> Account:
    driver = change["driver"]
    if driver == own:
        return Account(change, own)
    answer = answers.get(driver, "it is not known here")
    if isinstance(answer, str):
        return Account(change, own, answer)
    for theirs in answer.get("history", ()):
        if theirs["view_id"] == change["view_id"]:
            # A member that leaves does not install its own removal: the requested member has the moments that it lacks.
            moments = {**_shifted(change, theirs), **theirs["moments"]}
            return Account({**theirs, "moments": moments, "names": {**change["names"], **theirs["names"]}}, driver)
    return Account(change, own, "it no longer keeps this change")


def _shifted(change: _Change, theirs: _Change) -> dict[str, float]:
    """Return the activation as the requested member saw it, for a driver that was not in the view; by the wall clock."""
    if "activated" in theirs["moments"] or "activated" not in change["moments"] or "time" not in change or "time" not in theirs:
        return {}
    return {"activated": change["moments"]["activated"] + change["time"] - theirs["time"]}


# As text


def explain(story: Story, now: datetime | None = None) -> str:
    """Return the changes as text, oldest first. Raises FTLibError if the records are of another version."""
    now = now or datetime.now().astimezone()
    try:
        texts = [_told(account, now) for account in story.accounts]
        if story.under_way is not None:
            texts.append(_waiting(story.under_way, now))
        return printable("\n".join(texts)) or "no view has been agreed on yet"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FTLibError(
            f"a record of a view change cannot be read ({error!r}): is it of another version? Try --json"
        ) from None


def printable(text: str) -> str:
    """Replace control characters of a terminal, since names and details come from other processes."""
    return "".join(character if character.isprintable() or character == "\n" else "?" for character in text)


def _told(account: Account, today: datetime) -> str:
    change = account.change
    causes = _causes(change)
    lines = [_headline(change, today) + (causes[0] if len(causes) == 1 else f"{len(causes)} causes")]
    lines += [f"    {cause}" for cause in causes if len(causes) > 1]
    lines += [f"    {line}" for line in (_before(change), _way(change), _agreement(account)) if line]
    return "\n".join(lines)


def _waiting(change: _Change, now: datetime) -> str:
    """Return a change that is not active yet: its known reasons, and what it waits for."""
    since = max(0.0, now.timestamp() - float(change["time"]))
    lines = [f"epoch {change['epoch']}  under way for {_span(since)}"]
    for item in change["findings"]:
        if item["kind"] in _DECISIVE:
            told = f"({item['kind']}, from {_short(change, item['source'])})"
            lines.append(f"{_full(change, item['accused'])}: {item['detail']} {told}")
    lines.append(str(change["text"]))
    return "\n    ".join(lines)


def _headline(change: _Change, today: datetime) -> str:
    """Return epoch, time of day (with the date if it was not today), sizes and duration."""
    at = datetime.fromtimestamp(float(change.get("time", 0.0))).astimezone()
    clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
    if at.date() != today.date():
        clock = f"{at:%Y-%m-%d} {clock}"
    before, after = change["size_before"], change["size"]
    size = f"{f'{before} -> ' if before else ''}{after} member{'s' * (after != 1)}"
    total = change["phases"]["total"]
    took = _span(total) if "activated" in change["moments"] else f"not active after {_span(total)}"
    return f"epoch {change['epoch']}  {clock}  {size}, {took}   "


def _causes(change: _Change) -> list[str]:
    """Return the members removed and joined, with the reasons."""
    found = []
    for removal in change["removed"]:
        cause, source = removal["cause"] or "nothing known here", removal["source"]
        who = _full(change, removal["id"])
        if cause == "left":
            found.append(f"without {who}: left on its own wish")
            continue
        detail = f"{removal['detail']} " if removal["detail"] else ""
        told = f", from {'itself' if source == removal['id'] else _short(change, source)}" if source else ""
        found.append(f"without {who}: {detail}({cause}{told})")
    if change["joined"]:
        verb = "founded by" if change["cause"] == "founded" else "with"
        found.append(f"{verb} {', '.join(_full(change, member_id) for member_id in change['joined'])}")
    if not found:
        frozen = [item for item in change["findings"] if item["kind"] == "frozen"]
        why = [f"{_short(change, item['accused'])}: {item['detail']}" for item in frozen]
        found.append(f"the same members; {'; '.join(why) or 'one of them needed a new group'}")
    return found


def _before(change: _Change) -> str:
    """Return the findings that led to the change without being its reason."""
    parts = []
    for item in change["findings"]:
        who, when = _short(change, item["accused"]), _apart(item["after"])
        if item["kind"] == "suspect":
            parts.append(f"{who} suspected by {_short(change, item['source'])} {when}")
        elif item["kind"] == "fence":
            parts.append(f"supervisor of {who} asked to kill it {when}")
    if "wished" in change["moments"]:
        parts.append(f"the end of a call asked for {_apart(change['moments']['wished'])}")
    return f"before: {'; '.join(parts)}" if parts else ""


def _way(change: _Change) -> str:
    """Return the moments of the change, in milliseconds from the first evidence, with the last member of each."""
    moments = change["moments"]
    parts: list[tuple[float, str]] = []
    decisive = [item for item in change["findings"] if item["kind"] in _DECISIVE]
    if decisive:
        first = min(decisive, key=lambda item: item["after"])
        parts.append((first["after"], f"evidence {_point(first['after'])} {_short(change, first['source'])}"))
    if "halted" in moments:
        parts.append((moments["halted"], f"calls stopped {_point(moments['halted'])}"))
    if "sent" in moments:
        steps = [("settled", "proposed", None), ("prepared", "prepared", None), ("frozen", "sent", "reports")]
        steps += [("installed", "installed", None), ("built", "complete", "readies"), ("activated", "activated", None)]
    else:
        steps = [("asked to freeze", "asked", None), ("frozen", "flushed", None), ("installed", "installed", None)]
        steps += [("built", "ready", None), ("activated", "activated", None)]
    for text, moment, table in steps:
        if moment in moments and not (moment == "sent" and not change["reports"]):  # founders have nothing to report
            last = _last(change, change[table]) if table is not None else ""
            parts.append((moments[moment], f"{text} {_point(moments[moment])}{last}"))
    return " · ".join(text for _, text in sorted(parts, key=lambda part: part[0]))


def _last(change: _Change, times: Mapping[str, float]) -> str:
    if not times:
        return ""
    member_id, time = max(times.items(), key=lambda item: item[1])
    return f" (last: {_short(change, member_id)}, {_point(time)})"


def _agreement(account: Account) -> str:
    change = account.change
    driver, ballot = change["driver"], change["ballot"]
    parts = [f"led by {_short(change, driver)}" if driver else "driver unknown"]
    if ballot and ballot[0] > 0:
        parts.append(f"ballot {ballot[0]}")
    if change["quorum"]:
        parts.append(f"quorum {', '.join(_short(change, member_id) for member_id in change['quorum'])}")
    if change["discounted"]:
        parts.append(f"not counted {', '.join(_short(change, member_id) for member_id in change['discounted'])}")
    if account.missing and driver:
        parts.append(f"told by {_short(change, account.teller)}, as {account.missing}")
    return "; ".join(parts)


def _short(change: _Change, member_id: str) -> str:
    names = change["names"].get(member_id) or {}
    return str(names.get("name") or member_id[:6] or "nobody")


def _full(change: _Change, member_id: str) -> str:
    names = change["names"].get(member_id) or {}
    if names.get("name"):
        return f"{names['name']} ({member_id[:6]})"
    return f"{member_id[:6]}@{names['address']}" if names.get("address") else member_id[:6]


def _point(seconds: float) -> str:
    """A moment relative to the first evidence."""
    return f"{seconds * 1e3:.1f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"


def _apart(seconds: float) -> str:
    return f"{_point(abs(seconds))} {'earlier' if seconds < 0 else 'later'}"


def _span(seconds: float) -> str:
    """A duration."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
