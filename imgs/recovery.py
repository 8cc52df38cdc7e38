"""Draws ``recovery.svg``: what four workers do when one is killed in mid-allreduce. Run it to redraw: no library needed."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, LANE = 960, 392, 112, 92, 52
INK, PAPER, RED, GREEN, BLUE, AMBER, GREY = "#1f2933", "#ffffff", "#c0392b", "#2e7d4f", "#2f6690", "#d9902f", "#9aa5b1"

# (from, to, colour, text) in milliseconds after the kill; the shape of one typical recovery, not to scale in its details.
SURVIVOR = [
    (-22, 2, BLUE, "allreduce of step 41"),
    (2, 10, RED, "error"),
    (10, 18, AMBER, "freeze"),
    (18, 30, GREY, "new group"),
    (30, 42, GREEN, "step 41 redone"),
    (42, 62, BLUE, "step 42"),
]
VICTIM = [(-22, 0, BLUE, "allreduce of step 41")]
NOTES = [
    (0, "kill -9"),
    (3, "tethers close: proof"),
    (12, "ACCEPT, votes"),
    (18, "INSTALL"),
    (30, "ACTIVATE"),
    (42, "average of three"),
]


def x(milliseconds: float) -> float:
    return LEFT + (milliseconds + 24) * (WIDTH - LEFT - 24) / 88


def text(at: float, y: float, words: str, *, size: int = 13, colour: str = INK, anchor: str = "middle") -> str:
    return (
        f'<text x="{at:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}" '
        f'font-family="Helvetica, Arial, sans-serif">{escape(words)}</text>'
    )


def bar(row: int, start: float, end: float, colour: str, words: str) -> list[str]:
    y = TOP + row * LANE
    width = x(end) - x(start)
    parts = [
        f'<rect x="{x(start):.1f}" y="{y}" width="{width - 2:.1f}" height="30" rx="4" fill="{colour}" fill-opacity="0.88"/>'
    ]
    if len(words) * 6.4 < width:
        parts.append(text(x(start) + width / 2, y + 20, words, size=12, colour=PAPER))
    return parts


def picture() -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
        text(
            24,
            34,
            "A worker is killed in the middle of a step: the others finish that step without it",
            size=18,
            anchor="start",
        ),
        text(
            24,
            58,
            "milliseconds after the kill, on one two-core machine (see docs/figures.md)",
            colour="#52606d",
            anchor="start",
        ),
    ]
    rows = [("worker 0", SURVIVOR), ("worker 1", SURVIVOR), ("worker 2", VICTIM), ("worker 3", SURVIVOR)]
    for row, (name, bars) in enumerate(rows):
        parts.append(text(LEFT - 12, TOP + row * LANE + 20, name, anchor="end"))
        for item in bars:
            parts += bar(row, *item)
    dead = TOP + 2 * LANE
    parts.append(f'<path d="M{x(1):.0f} {dead + 4} l22 22 m0 -22 l-22 22" stroke="{RED}" stroke-width="4" fill="none"/>')
    for number, (moment, words) in enumerate(NOTES):
        y = TOP + 4 * LANE + 6 + number % 3 * 20
        parts.append(
            f'<line x1="{x(moment):.1f}" x2="{x(moment):.1f}" y1="{TOP - 8}" y2="{y:.0f}" stroke="{INK}" '
            'stroke-width="1" stroke-dasharray="3 3"/>'
        )
        parts.append(text(x(moment) + 4, y + 12, f"{moment} ms: {words}", size=12, anchor="start"))
    parts.append(
        text(24, HEIGHT - 14, "No forward or backward pass is repeated, and nobody waits for a timeout.", anchor="start")
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture(), encoding="utf-8")
