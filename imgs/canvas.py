"""An SVG drawing that refuses text which does not fit: what the scripts beside this one draw on.

Text stays text. Its width is taken from DejaVu Sans, the widest of the fonts that a reader may see, so that nothing is cut or
overlaps with another one either. The card is opaque: it looks the same on a light and on a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

INK, QUIET, PAPER, LINE = "#1f2933", "#52606d", "#ffffff", "#9aa5b1"
BLUE, GREEN, AMBER, RED, VIOLET, GREY = "#2f6690", "#2e7d4f", "#c77d1e", "#c0392b", "#6b4c9a", "#7b8794"
PALE = {BLUE: "#e6eff6", GREEN: "#e5f3ea", AMBER: "#fbf0de", RED: "#fae5e2", VIOLET: "#efe9f7", GREY: "#f0f2f4", PAPER: PAPER}
"""A background for each colour."""

_FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
_MONO = "Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# Hundredths of the font size, from space to tilde.
_WIDTHS = [32, 40, 46, 84, 64, 95, 78, 27, 39, 39, 50, 84, 32, 36, 32, 34, 64, 64, 64, 64, 64, 64, 64, 64, 64, 64, 34, 34, 84, 84,
           84, 53, 100, 68, 69, 70, 77, 63, 58, 77, 75, 29, 29, 66, 56, 86, 75, 79, 60, 79, 69, 63, 61, 73, 68, 99, 69, 61, 69, 39,
           34, 39, 84, 50, 50, 61, 63, 55, 63, 62, 35, 63, 63, 28, 28, 58, 28, 97, 63, 61, 63, 63, 41, 52, 39, 63, 59, 82, 59, 59,
           52, 64, 34, 64, 84]  # fmt: skip
_OTHER, _BOLD, _FIXED = 84, 1.15, 60


def width_of(words: str, size: float, *, bold: bool = False, mono: bool = False) -> float:
    """Pixels that ``words`` take at most."""
    if mono:
        return len(words) * _FIXED * size / 100
    units = sum(_WIDTHS[ord(c) - 32] if 32 <= ord(c) < 127 else _OTHER for c in words)
    return units * size / 100 * (_BOLD if bold else 1)


@dataclass
class Canvas:
    """A card of ``width`` x ``height`` pixels with a headline. ValueError where text does not fit or overlaps other text."""

    width: int
    height: int
    title: str
    subtitle: str
    _parts: list[str] = field(default_factory=list)
    _texts: list[tuple[float, float, float, float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text(24, 38, self.title, size=19, bold=True, anchor="start")
        self.text(24, 61, self.subtitle, colour=QUIET, anchor="start")

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: float = 13,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        mono: bool = False,
        room: float | None = None,
        halo: bool = False,
    ) -> None:
        """One line whose baseline is at ``y``; ``room``: pixels it may take."""
        wide = width_of(words, size, bold=bold, mono=mono)
        if room is not None and wide > room:
            raise ValueError(f"{words!r} takes {wide:.0f} pixels, there are {room:.0f}")
        left = {"start": x, "middle": x - wide / 2, "end": x - wide}[anchor]
        here = (left, y - 0.76 * size, left + wide, y + 0.2 * size, words)
        if left < 8 or here[2] > self.width - 8 or here[1] < 4 or here[3] > self.height - 4:
            raise ValueError(f"{words!r} leaves the card")
        for other in self._texts:
            if here[0] < other[2] and other[0] < here[2] and here[1] < other[3] and other[1] < here[3]:
                raise ValueError(f"{words!r} overlaps {other[4]!r}")
        self._texts.append(here)
        style = ' font-weight="bold"' if bold else ""
        style += f' stroke="{PAPER}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
        font = f' font-family="{_MONO}"' if mono else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}"{style}{font}>'
            f"{escape(words)}</text>"
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = PAPER,
        stroke: str = LINE,
        radius: float = 6,
        dashed: bool = False,
        line: float = 1.2,
    ) -> None:
        """A rounded rectangle."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self._parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" fill="{fill}" '
            f'stroke="{stroke}" stroke-width="{line:g}"{dash}/>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        title: str,
        lines: Sequence[str] = (),
        *,
        colour: str = GREY,
        dashed: bool = False,
        mono: bool = False,
    ) -> None:
        """A box with a bold title and lines below it, centred."""
        self.rect(x, y, width, height, fill=PALE[colour], stroke=colour, dashed=dashed)
        room = width - 12
        top = y + height / 2 - 8.5 * len(lines) + 5
        self.text(x + width / 2, top, title, size=14, bold=True, colour=INK, room=room, mono=mono)
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 18 + 17 * number, line, size=12.5, colour=QUIET, room=room)

    def bar(self, x: float, y: float, end: float, height: float, words: str, *, colour: str, dark: bool = True) -> None:
        """A stretch of time; its words are drawn where they fit, else nowhere: say them elsewhere then."""
        fill, ink = (colour, PAPER) if dark else (PALE[colour], INK)
        self.rect(x, y, end - x, height, fill=fill, stroke=colour, radius=3, line=1)
        if words:
            self.text((x + end) / 2, y + height / 2 + 4.4, words, size=12.5, colour=ink, room=end - x - 6)

    def line(
        self, points: Sequence[tuple[float, float]], *, colour: str = LINE, dashed: bool = False, line: float = 1.4
    ) -> None:
        """A line through the points."""
        path = " ".join(f"{'M' if not number else 'L'}{x:g} {y:g}" for number, (x, y) in enumerate(points))
        dash = ' stroke-dasharray="4 4"' if dashed else ""
        self._parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{line:g}"{dash}/>')

    def arrow(
        self,
        points: Sequence[tuple[float, float]],
        *,
        colour: str = INK,
        both: bool = False,
        dashed: bool = False,
        line: float = 1.6,
        head: float = 8,
    ) -> None:
        """A line with a head at its end, or at both."""
        points = list(points)
        tips = [(points[-2], points[-1])] + ([(points[1], points[0])] if both else [])
        shafts = list(points)
        for (from_x, from_y), tip in tips:
            angle = math.atan2(tip[1] - from_y, tip[0] - from_x)
            corners = [
                (tip[0] - head * math.cos(angle + turn), tip[1] - head * math.sin(angle + turn)) for turn in (-0.45, 0.45)
            ]
            short = (tip[0] - 0.7 * head * math.cos(angle), tip[1] - 0.7 * head * math.sin(angle))
            shafts = [short if point == tip else point for point in shafts]
            shape = " ".join(f"{x:.1f},{y:.1f}" for x, y in [tip, *corners])
            self._parts.append(f'<polygon points="{shape}" fill="{colour}"/>')
        self.line([(round(x, 1), round(y, 1)) for x, y in shafts], colour=colour, dashed=dashed, line=line)

    def cross(self, x: float, y: float, size: float = 9) -> None:
        """Somebody is killed here."""
        for colour, width in [(PAPER, 8), (RED, 4.5)]:
            self._parts.append(
                f'<path d="M{x - size:g} {y - size:g} L{x + size:g} {y + size:g} M{x - size:g} {y + size:g} '
                f'L{x + size:g} {y - size:g}" stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round" fill="none"/>'
            )

    def mark(self, x: float, y: float, number: int, *, colour: str = INK) -> None:
        """A number in a disc, explained in a legend."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="9.5" fill="{colour}" stroke="{PAPER}" stroke-width="1.5"/>')
        self.text(x, y + 4.2, str(number), size=12, bold=True, colour=PAPER)

    def dot(self, x: float, y: float, *, colour: str = INK) -> None:
        """Where something begins."""
        self._parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="5" fill="{colour}"/>')

    def svg(self) -> str:
        """The whole drawing."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="img" font-family="{_FONT}">'
        )
        card = f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="10" fill="{PAPER}" stroke="#d5dbe1"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", card, *self._parts, "</svg>"]) + "\n"
