"""State diagrams from transition tables: what ``life.py``, ``detection.py`` and ``change.py`` draw with.

Places are chosen by hand, the arrows are the table's: ValueError where a transition has no arrow, an arrow no transition, or a
state no place. An arrow's words are the event's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from canvas import GREY, INK, PALE, PAPER, Canvas, width_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the tables are those of this copy

from consensus.transitions import Table


@dataclass(frozen=True)
class Box:
    """A state. ``left``, ``top``: its corner; ``lines``: what it means."""

    left: float
    top: float
    colour: str = GREY
    lines: Sequence[str] = ()
    width: float = 128
    height: float = 40


@dataclass(frozen=True)
class Arrow:
    """``points``: its way. ``words_at``: where its words begin (a baseline); without, another arrow of the event has them."""

    points: Sequence[tuple[float, float]]
    words_at: tuple[float, float] | None = None
    room: float = 150
    anchor: str = "start"
    colour: str = INK
    dashed: bool = False


@dataclass
class _Said:
    events: set[Enum] = field(default_factory=set)


def chart(
    c: Canvas,
    table: Table[Any, Any],
    boxes: Mapping[Enum, Box],
    arrows: Mapping[tuple[Enum, Enum], Arrow],
    start: Sequence[tuple[float, float]],
) -> None:
    """Draw ``table`` on ``c``. ``start``: the way from a dot to the first state."""
    _refuse_gaps(table, boxes, arrows)
    said = _Said()
    for (_, event), arrow in arrows.items():
        c.arrow(arrow.points, colour=arrow.colour, dashed=arrow.dashed, head=7, line=1.5)
        if arrow.words_at is not None:
            said.events.add(event)
    for state, box in boxes.items():
        _box(c, box, state, final=state in table.final)
    c.arrow(start, head=7)
    c.dot(*start[0])
    for (_, event), arrow in arrows.items():
        if arrow.words_at is not None:
            x, y = arrow.words_at
            for number, line in enumerate(_wrapped(str(event.value), arrow.room)):
                c.text(x, y + 15 * number, line, size=12, colour=arrow.colour, anchor=arrow.anchor, halo=True)
    mute = [event.name for _, event, _ in table if event not in said.events]
    if mute:
        raise ValueError(f"{table.name}: no arrow says what {', '.join(sorted(set(mute)))} is")


def _refuse_gaps(table: Table[Any, Any], boxes: Mapping[Enum, Box], arrows: Mapping[tuple[Enum, Enum], Arrow]) -> None:
    rows = {(state, event) for state, event, _ in table}
    problems = [
        *(f"{state.name} has no place" for state in table.states if state not in boxes),
        *(f"{state.name} -{event.name}-> has no arrow" for state, event, _ in table if (state, event) not in arrows),
        *(f"there is no {state.name} -{event.name}->" for state, event in arrows if (state, event) not in rows),
        *_astray(table, boxes, arrows),
    ]
    if problems:
        raise ValueError(f"{table.name}: {'; '.join(problems)}")


def _astray(table: Table[Any, Any], boxes: Mapping[Enum, Box], arrows: Mapping[tuple[Enum, Enum], Arrow]) -> list[str]:
    """Arrows that do not go from the box of their state to that of the next."""
    found = []
    for state, event, target in table:
        if (state, event) in arrows and state in boxes and target in boxes:
            points = arrows[state, event].points
            if not (_touches(boxes[state], points[0]) and _touches(boxes[target], points[-1])):
                found.append(f"the arrow {state.name} -{event.name}-> does not lead to {target.name}")
    return found


def _touches(box: Box, point: tuple[float, float]) -> bool:
    x, y = point
    return box.left - 4 <= x <= box.left + box.width + 4 and box.top - 4 <= y <= box.top + box.height + 4


def _box(c: Canvas, box: Box, state: Enum, *, final: bool) -> None:
    if final:
        c.rect(box.left - 3, box.top - 3, box.width + 6, box.height + 6, fill=PAPER, stroke=box.colour, radius=10, line=1)
    c.rect(box.left, box.top, box.width, box.height, fill=PALE[box.colour], stroke=box.colour, radius=8, line=1.5)
    middle = box.left + box.width / 2
    top = box.top + box.height / 2 - 7.5 * len(box.lines) + 5
    c.text(middle, top, str(state.value).split(" for a ")[0], size=13.5, bold=True, room=box.width - 8)
    for number, line in enumerate(box.lines):
        c.text(middle, top + 16 + 15 * number, line, size=11.5, colour="#52606d", room=box.width - 6)


def _wrapped(words: str, room: float) -> list[str]:
    lines: list[str] = []
    for word in words.split():
        if lines and width_of(f"{lines[-1]} {word}", 12) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines
