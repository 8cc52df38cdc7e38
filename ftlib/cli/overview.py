"""``ftlib status`` for a person: the member itself, its view of the others, and its counters."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..common.units import size, span
from ..core.plane.progress import told
from ..errors import FTLibError
from .explain import Account, Story, explain, printable

_NOTES = 8
"""The number of remarks of the agent that are shown, the newest."""

_SPARES = 8
"""The number of waiting members that are named."""

_ENDLESS = 10_000
_STILL = 1.5
"""Seconds without change after which a peer's progress is shown as unchanged; pings come about every half second."""

_Values = Mapping[str, Any]
_COLOURS = {"alive": "green", "suspect": "yellow", "dead": "red"}


def show(status: _Values, console: Console | None = None) -> None:
    """Print ``status`` once."""
    console = console or _console()
    console.print(overview(status))


def _console() -> Console:
    """Return a console on stdout; lines are not cut if stdout is a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_ENDLESS)


def watch_status(fetch: Callable[[], _Values], console: Console | None = None, every: float = 1.0) -> int:
    """Show what ``fetch`` returns, again every ``every`` seconds, until Ctrl-C; returns 0. Its FTLibError ends the watch."""
    console = console or _console()
    try:
        with Live(overview(fetch()), console=console, auto_refresh=False, screen=console.is_terminal) as live:
            while True:
                time.sleep(every)  # the refresh rate of the display
                live.update(overview(fetch()), refresh=True)
    except KeyboardInterrupt:
        return 0


def overview(status: _Values) -> RenderableType:
    """Return header, members, counters, remarks; missing parts are left out. Raises FTLibError for another version's answer."""
    try:
        return _overview(status)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise FTLibError(f"the answer cannot be read ({error!r}): does the member run another version? Try --json") from None


def _overview(status: _Values) -> RenderableType:
    parts: list[RenderableType] = [_line(line) for line in _header(status)]
    if status.get("members"):
        parts.append(_members(status))
    parts += [_line(line) for line in _counters(status)]
    notes = list(status.get("notes") or ())[-_NOTES:]
    if notes:
        parts.append(Text("remarks", style="bold"))
        parts += [_line(f"  {_clock(note['time'])} {note['kind']}: {note['text']}") for note in notes]
    return Group(*parts)


def _line(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style, overflow="fold")


def _header(status: _Values) -> Iterator[str]:
    upper, meta = _upper(status), status.get("meta") or {}
    names = {member["id"]: _label(member) for member in status.get("members") or ()}
    own = str(status.get("member") or "?")
    pid = f", pid {meta['pid']}" if "pid" in meta else ""
    yield f"{meta.get('name') or 'member'} ({own[:6]}) at {status.get('address', '?')}{pid}, job {status.get('job', '?')}"
    count = len(status.get("members") or ())
    facts = [f"epoch {status.get('active_epoch', '?')}", f"{count} member{'s' * (count != 1)}"]
    if upper:
        facts += [f"rank {upper['rank']}", f"step {upper['step']}", str(upper["phase"])]
    if status.get("changing"):
        facts.append(f"a view change is under way (newest known epoch {status.get('epoch')})")
    yield " · ".join(facts)
    if (status.get("ftlib") or {}).get("stale"):
        yield "the training process does not answer (busy, or hung): its numbers are older, or missing"
    coordinator = status.get("coordinator")
    yield f"coordinator {names.get(coordinator, coordinator or 'none')}, policy {status.get('policy', '?')}"
    spares = status.get("spares")
    if spares:
        more = " ..." if len(spares) > _SPARES else ""
        yield f"waiting to be let in: {', '.join(_label(spare) for spare in spares[:_SPARES])}{more}"
    if status.get("stopped"):
        yield f"stopped: {status['stopped']}"
    history = status.get("history")
    if history:
        yield "last change: " + explain(Story((Account(history[-1], own),))).splitlines()[0]
    under_way = status.get("under_way")
    if under_way:
        yield from explain(Story((), under_way)).splitlines()


def _upper(status: _Values) -> _Values:
    """Return the training process's part of the status; empty if it has not sent any yet."""
    upper: _Values = status.get("ftlib") or {}
    return upper if "phase" in upper else {}


def _label(member: _Values) -> str:
    name = (member.get("meta") or {}).get("name")
    return f"{name} ({member['id'][:6]})" if name else str(member["id"][:6])


def _members(status: _Values) -> Table:
    """Return one row for each member, in seniority order. Progress: from pings, or this member's own."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in ("member", "id", "address", "status", "against it", "progress"):
        table.add_column(column, overflow="fold")
    for member in status["members"]:
        name = (member.get("meta") or {}).get("name") or "-"
        mark = " *" if member["id"] == status.get("coordinator") else ""
        colour = _COLOURS.get(str(member.get("status")), "")
        table.add_row(
            _line(f"{name}{mark}"),
            _line(str(member["id"])[:6]),
            _line(str(member.get("address", "?"))),
            _line(str(member.get("status", "?")), colour),
            _line(_against(member)),
            _line(_progress(status, str(member["id"]))),
        )
    return table


def _against(member: _Values) -> str:
    """Return the evidence, and how often the member had to refute a suspicion."""
    refuted = f"refuted {member['incarnation']} times" if member.get("incarnation") else ""
    return ", ".join(part for part in (str(member.get("evidence") or ""), refuted) if part) or "-"


def _progress(status: _Values, member_id: str) -> str:
    upper = _upper(status)
    if member_id == status.get("member"):
        call, finished = upper.get("in_call"), upper.get("finished_calls")
        state = _inner(upper) + _getting(upper)
        if call is not None:
            return f"{finished} calls, in call {call['number']} for {span(call['seconds'])}{state}{_pace(upper, member_id)}"
        return f"{finished} calls, outside of calls{state}{_pace(upper, member_id)}" if finished is not None else "-"
    peer = (upper.get("peers") or {}).get(member_id)
    if peer is None:
        return "-"
    if peer["finished"] is None:
        place = "has not told yet"
    else:
        where = f"in call {peer['current']}" if peer["current"] else "outside of calls"
        still = f", unchanged for {span(peer['seconds'])}" if peer["seconds"] >= _STILL else ""
        place = f"{peer['finished']} calls, {where}{still}"
    told_itself = (status.get("followers") or {}).get(member_id) or {}
    state = _getting(told_itself) or (", gets the state" if peer.get("following") else "")
    return f"{place}{_inner(peer)}{state}{_pace(upper, member_id)}"


def _inner(member: _Values) -> str:
    """Return how many steps the member has done by itself, if it does any."""
    return f", {member['inner_steps']} inner steps" if member.get("inner_steps") else ""


def _pace(upper: _Values, member_id: str) -> str:
    """Return the member's time outside of calls for each step, as the requested member knows it."""
    times = (upper.get("step_times") or {}).get(member_id)
    if not times:
        return ""
    slow = f", a straggler for {times['slow_for']} steps" if times["straggler"] else ""
    return f", {span(times['median'])} a step{slow}"


def _getting(upper: _Values) -> str:
    """Return how far the member is with getting the state, while it does."""
    return f", gets the state: {told(upper['recovery'])}" if upper.get("recovery") else ""


def _counters(status: _Values) -> Iterator[str]:
    upper = _upper(status)
    if upper:
        calls, pauses = upper["call_seconds"], upper["pauses"]
        mean = calls["sum"] / calls["count"] if calls["count"] else 0.0
        yield (
            f"calls {upper['calls']} (mean {span(mean)}, last {span(calls['last'])}, longest {span(calls['max'])}), "
            f"{size(upper['bytes_averaged'])} averaged; redone {upper['redone']}, adopted {upper['adopted']}, "
            f"donated {upper['donated']}"
        )
        yield (
            f"pauses {pauses['count']} (last {span(pauses['last'])}, longest {span(pauses['max'])}, "
            f"in all {span(pauses['sum'])}); groups that failed to build {upper['rebuild_failures']}"
        )
    counts = status.get("view_changes") or {}
    if counts.get("changes"):
        kinds = ", ".join(f"{count} {cause}" for cause, count in counts["changes"].items())
        yield f"view changes {sum(counts['changes'].values())}: {kinds}"
    for direction, kinds in (status.get("messages") or {}).items():
        if kinds:
            total = sum(entry["messages"] for entry in kinds.values())
            nbytes = sum(entry["bytes"] for entry in kinds.values())
            top = sorted(kinds.items(), key=lambda item: -item[1]["messages"])[:5]
            names = ", ".join(f"{kind} {entry['messages']}" for kind, entry in top)
            yield f"messages {direction} {total} ({size(nbytes)}): {names}{', ...' if len(kinds) > len(top) else ''}"
    store = status.get("store")
    if store:
        yield _store(store)
    delay = status.get("tick_delay")
    if delay:
        mean = delay["sum"] / delay["count"] if delay["count"] else 0.0
        latest = status.get("tick_delay_max", 0.0)
        yield f"agent: awareness {status.get('awareness', 0)}, timers late {span(mean)} on average, {span(latest)} at most"


def _store(store: _Values) -> str:
    away = store.get("away_since")
    state = f"away since {_clock(away)}" if away is not None else "up" if store.get("open") else "being opened"
    kinds = ", ".join(f"{kind} {count}" for kind, count in (store.get("requests") or {}).items())
    failed = f"; {store['failures']} failed" if store.get("failures") else ""
    count = f"operations {store.get('operations', 0)}{f' ({kinds})' if kinds else ''}"
    return f"store {store.get('url', '?')}: {state}, {count}{failed}"


def _clock(wall: float) -> str:
    """Return the time of day, with the date if it was not today."""
    at = datetime.fromtimestamp(wall).astimezone()
    clock = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
    return clock if at.date() == datetime.now().astimezone().date() else f"{at:%Y-%m-%d} {clock}"
