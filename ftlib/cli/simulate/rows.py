"""The rows of the picture: one for each process, or one for many processes with the same story.

A restarted process keeps its row. With more than ``SINGLE`` processes, those with the same story (the same views, faults and
end) share a row, whose times are their means. So if faults touched a few of a thousand members, those few are still visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean

from consensus.simulation.transcript.recorder import Activity, Cover, Mark, ProcessSpan, Span

SINGLE = 64
"""Up to this number of processes, each has a row of its own."""


@dataclass(frozen=True)
class Row:
    """One row of the picture, for ``count`` processes."""

    label: str
    count: int
    phases: tuple[tuple[Activity, float, float, str], ...]
    """(phase, start, end, view id)."""

    covers: tuple[tuple[Cover, float, float], ...]
    marks: tuple[tuple[Mark, float], ...]


def rows_of(lifetimes: Iterable[ProcessSpan], end: float) -> list[Row]:
    """Return the rows from top to bottom, in the order in which processes were started first."""
    processes: dict[str, list[ProcessSpan]] = {}
    for life in lifetimes:
        processes.setdefault(life.name, []).append(life)
    rows = [_row(name, lives, end) for name, lives in processes.items()]
    return rows if len(rows) <= SINGLE else _gathered(rows)


def _row(name: str, lives: list[ProcessSpan], end: float) -> Row:
    def until(span: Span) -> float:
        return end if span.end is None else span.end

    phases = [(phase, span.start, until(span), span.view) for life in lives for phase, span in life.phases]
    covers = [(cover, span.start, until(span)) for life in lives for cover, span in life.covers]
    marks = [mark for life in lives for mark in life.marks]
    return Row(name, 1, tuple(item for item in phases if item[2] > item[1]), tuple(covers), tuple(marks))


def _gathered(rows: list[Row]) -> list[Row]:
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        story = (
            tuple((phase, view) for phase, _, _, view in row.phases),
            tuple(cover for cover, _, _ in row.covers),
            tuple(mark for mark, _ in row.marks),
        )
        alike.setdefault(story, []).append(row)
    merged = [_merged(group) for group in alike.values()]
    return merged if len(merged) <= SINGLE else _coarser(merged)


def _coarser(rows: list[Row]) -> list[Row]:
    """Join rows with the same marks and the same faults, since there are still too many stories; draws the largest group."""
    alike: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        kinds = (frozenset(cover for cover, _, _ in row.covers), frozenset(mark for mark, _ in row.marks))
        alike.setdefault(kinds, []).append(row)
    found = []
    for group in alike.values():
        largest = max(group, key=lambda row: row.count)
        count = sum(row.count for row in group)
        label = largest.label if count == largest.count else f"{count} like {largest.label.split(' like ')[-1]}"
        found.append(Row(label, count, largest.phases, largest.covers, largest.marks))
    return found


def _merged(group: list[Row]) -> Row:
    """Rows with the same story: means of their times."""
    if len(group) == 1:
        return group[0]
    first = group[0]
    return Row(
        f"{len(group)} like {first.label}",
        len(group),
        tuple(
            (phase, fmean(row.phases[at][1] for row in group), fmean(row.phases[at][2] for row in group), view)
            for at, (phase, _, _, view) in enumerate(first.phases)
        ),
        tuple(
            (cover, fmean(row.covers[at][1] for row in group), fmean(row.covers[at][2] for row in group))
            for at, (cover, _, _) in enumerate(first.covers)
        ),
        tuple((mark, fmean(row.marks[at][1] for row in group)) for at, (mark, _) in enumerate(first.marks)),
    )
