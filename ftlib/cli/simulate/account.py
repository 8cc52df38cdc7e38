"""What happened in a run: as plain values for programs, and as text for people. Both are the same for the same order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from consensus.simulation.script.scenario import Scenario
from consensus.simulation.transcript.recorder import Mark, ViewRecord

from .run import Run

_TOUCHING = frozenset({"pause", "stall", "isolate", "cut", "split", "lossy", "lossy_link", "clog", "slow", "jump", "refuse"})
_EVERYBODY = frozenset({"loss", "reordering", "latency"})
_SHOWN = 12
"""The number of view changes shown at either end."""

_NAMES = 6


def account(run: Run) -> dict[str, Any]:
    """Report as plain values. Times in simulated seconds since the first process started; ``took``: from the first evidence to
    the new view.
    """
    recorder, world, order = run.recorder, run.world, run.order
    lives = list(recorder.lifetimes.values())
    marks = Counter(mark for life in lives for mark, _ in life.marks)
    touched = disturbed(run.scenario)
    excluded = [{"name": name, "epoch": epoch} for name, epoch in recorder.living_excluded]
    return {
        "ok": run.good,
        "outcome": run.outcome,
        "detail": run.detail,
        "replay": order.command,
        "seed": order.seed,
        "members": order.members,
        "faults": order.faults,
        "policy": order.policy,
        "simulated_seconds": round(recorder.time, 6),
        "healed_at": None if run.healed is None else round(run.healed, 6),
        "events": world.events,
        "messages": sum(recorder.messages().values()),
        "messages_by_type": dict(sorted(recorder.messages().items())),
        "bytes": round(sum(recorder.bytes_sent(life.member_id) for life in lives)),
        "bytes_per_member_and_second": round(_rate(run), 1),
        "processes": {
            "started": len(lives),
            "joined": marks[Mark.JOINED],
            "killed": marks[Mark.KILLED],
            "excluded": marks[Mark.EXCLUDED],
            "left": marks[Mark.LEFT],
            "quorum_lost": marks[Mark.QUORUM_LOST],
            "turned_away": marks[Mark.TURNED_AWAY],
        },
        "views": [_view(record) for record in recorder.views.values()],
        "living_excluded": excluded,
        "false_exclusions": [item for item in excluded if touched is not None and item["name"] not in touched],
        "history": str(run.scenario).splitlines(),
        "digest": world.digest,
    }


def disturbed(scenario: Scenario) -> frozenset[str] | None:
    """Return the processes that an event kept from answering; None if that may be all (messages of all were lost or late)."""
    if any(event.command in _EVERYBODY for event in scenario.events):
        return None
    found = set()
    for event in scenario.events:
        if event.command in _TOUCHING:
            found |= {name for word in event.words for name in word.split(",")}
    return frozenset(found)


def _rate(run: Run) -> float:
    """Return the mean bytes that a member sent in a second of its life."""
    recorder = run.recorder
    lived = sum((recorder.time if life.over is None else life.over) - life.born for life in recorder.lifetimes.values())
    return sum(recorder.bytes_sent(key) for key in recorder.lifetimes) / lived if lived else 0.0


def _view(record: ViewRecord) -> dict[str, Any]:
    return {
        "epoch": record.view.epoch,
        "view_id": record.view.view_id,
        "size": len(record.view),
        "cause": record.cause,
        "driver": record.driver,
        "took": round(record.seconds, 6),
        "first_active": round(record.first, 6),
        "last_active": round(record.last, 6),
        "active_at": record.active_at,
        "removed": {name: {"cause": cause, "detail": detail} for name, (cause, detail) in record.removed.items()},
        "joined": list(record.joined) if record.view.epoch > 1 else [],
    }


def text_of(run: Run) -> str:
    """Return the summary, a few dozen lines at most."""
    told = account(run)
    return "\n".join([*_headline(run, told), "", *_changes(told["views"]), "", *_figures(told), *_ending(run, told)])


def _headline(run: Run, told: dict[str, Any]) -> Iterator[str]:
    start = f"{run.order.members} members, seed {run.order.seed}, faults {run.order.faults}"
    yield f"{start}: {told['simulated_seconds']:.1f} simulated seconds, {told['events']:,} events"
    moments = run.scenario.events
    yield f"{len(moments)} events of faults in {run.order.seconds:g} s" if moments else "nothing went wrong on purpose"


def _changes(views: list[dict[str, Any]]) -> Iterator[str]:
    if not views:
        yield "nobody ever acted in a view"
        return
    yield f"{'at':>8}  {'epoch':>5}  {'size':>4}  {'took':>9}  what"
    middle = len(views) - 2 * _SHOWN
    for number, view in enumerate(views):
        if middle > 0 and _SHOWN <= number < _SHOWN + middle:
            if number == _SHOWN:
                yield f"{'...':>8}  {middle} more"
            continue
        took = f"{view['took'] * 1e3:.1f} ms" if view["took"] < 1 else f"{view['took']:.2f} s"
        yield f"{view['first_active']:8.2f}  {view['epoch']:5d}  {view['size']:4d}  {took:>9}  {_what(view)}"


def _what(view: dict[str, Any]) -> str:
    by_cause: dict[str, list[str]] = {}
    for name, why in view["removed"].items():
        by_cause.setdefault(why["cause"], []).append(name)
    parts = [f"without {_some(names)} ({cause})" for cause, names in by_cause.items()]
    if view["joined"]:
        parts.append(f"with {_some(view['joined'])}")
    return "; ".join(parts) or ("founded" if view["cause"] == "founded" else "the same members again")


def _some(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= _NAMES else f"{', '.join(names[:_NAMES])} and {len(names) - _NAMES} more"


def _figures(told: dict[str, Any]) -> Iterator[str]:
    processes = told["processes"]
    yield "processes   " + ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in processes.items() if count)
    each = told["messages"] / max(1, processes["started"])
    rate = told["bytes_per_member_and_second"]
    yield f"messages    {told['messages']:,}, {each:,.0f} a process; {rate:,.0f} bytes a second and process, without the seal"
    healthy = told["false_exclusions"]
    names = f": {_some([item['name'] for item in healthy])}" if healthy else ""
    yield f"excluded    {len(told['living_excluded'])} that lived, {len(healthy)} of them untouched by any fault{names}"


def _ending(run: Run, told: dict[str, Any]) -> Iterator[str]:
    yield f"ended       {run.outcome}: {run.detail}"
    yield "violations  " + ("none" if run.good else f"1; repeat it with: {told['replay']}")
