"""The text: what happened at one instant, put together where it is alike, in three columns.

``A -> B C`` is a message from A to each of B and C, ``B C -> A`` one from each to A. Where many members say the same to
different ones, one line names all of them and counts the messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap

from .people import People
from .words import ABOUT

WIDTH = 100
TIME = 6
WHO = 20

MOST = 3
"""More lines than these of one kind and instant become one."""

GAP = 0.05
"""Seconds without any event that show as an empty line."""


@dataclass(slots=True)
class PageLine:
    """Something ``actor`` (an id) did: told ``target`` (None: nobody) ``text``, in which ``about`` stands for ``ABOUT``."""

    actor: str
    target: str | None
    text: str
    about: str = ""
    fate: str = ""
    """What became of a message, where it is not the usual."""


Row = tuple[frozenset[str], ...]
"""Actors, targets, and whom it is about; every combination of them happened."""


class Page:
    """Lines of text, added in their order."""

    def __init__(self, people: People) -> None:
        self._people = people
        self._lines: list[str] = []
        self._last: float | None = None

    def heading(self) -> None:
        """The names of the columns."""
        self._break()
        self._lines += [_row("ms", "who", "what"), _row("-" * TIME, "-" * WHO, "-" * (WIDTH - TIME - WHO - 4))]
        self._last = None

    def remark(self, at: float, text: str) -> None:
        """What the script does, at a time in seconds."""
        if self._last is not None:
            self._break()
        first, *rest = wrap(text, WIDTH - TIME - 6, break_on_hyphens=False)
        self._lines += [f"{_ms(at):>{TIME}}  == {first}", *(f"{'':{TIME}}     {line}" for line in rest)]
        self._last = at

    def instant(self, at: float, entries: Iterable[PageLine], *, timed: bool = True) -> None:
        """All that happened in a millisecond (which is not said again where it is not ``timed``)."""
        kinds: dict[tuple[str, str, bool], list[Row]] = {}
        for entry in entries:
            row = (_one(entry.actor), frozenset() if entry.target is None else _one(entry.target), _one(entry.about))
            kinds.setdefault((entry.text, entry.fate, entry.target is not None), []).append(row)
        shown = _ms(at) if timed else ""
        for (text, fate, _), rows in kinds.items():
            merged = _merged(rows)
            counted = len(merged) > MOST
            if counted:
                merged = [tuple(frozenset().union(*column) for column in zip(*merged, strict=True))]
            for actors, targets, concerned in merged:
                self._space(at)
                who = self._people.names(actors) + (f" -> {self._people.names(targets)}" if targets else "")
                what = (text if targets else _number(text, len(actors))).replace(ABOUT, self._people.names(concerned))
                if counted:
                    what = f"{len(set(rows))} x {what}" if targets else f"{what}, each some of them"
                elif targets and len(actors) * len(targets) >= 6:
                    what = f"{len(actors) * len(targets) * len(concerned)} x {what}"
                self._columns(shown, who, what + (f" [{fate}]" if fate else ""))
                shown, self._last = "", at

    def __str__(self) -> str:
        return "\n".join(line.rstrip() for line in self._lines).strip("\n") + "\n"

    def _columns(self, time: str, who: str, what: str) -> None:
        left = wrap(who, WHO, break_on_hyphens=False)
        right = wrap(what, WIDTH - TIME - WHO - 4, break_on_hyphens=False)
        for first, one, other in zip_longest([time], left, right, fillvalue=""):
            self._lines.append(_row(first, one, other))

    def _space(self, at: float) -> None:
        if self._last is not None and at - self._last > GAP:
            self._break()

    def _break(self) -> None:
        if self._lines and self._lines[-1]:
            self._lines.append("")


def _one(member_id: str) -> frozenset[str]:
    return frozenset((member_id,))


def _row(time: str, who: str, what: str) -> str:
    return f"{time:>{TIME}}  {who:<{WHO}}  {what}"


def _ms(at: float) -> str:
    return f"{1000 * at:.0f}"


def _merged(rows: list[Row]) -> list[Row]:
    """Rows that differ in one column only become one."""
    for column in (1, 2, 0):
        alike: dict[tuple[frozenset[str], ...], list[frozenset[str]]] = {}
        for row in rows:
            alike.setdefault(row[:column] + row[column + 1 :], []).append(row[column])
        rows = [(*rest[:column], frozenset[str]().union(*values), *rest[column:]) for rest, values in alike.items()]
    return rows


def _number(text: str, actors: int) -> str:
    """A sentence about several begins with the plural of its verb."""
    verb, space, rest = text.partition(" ")
    if actors == 1:
        return text
    bare = verb.rstrip(":")
    return _PLURALS.get(bare, bare.removesuffix("s")) + verb[len(bare) :] + space + rest


_PLURALS = {"is": "are", "goes": "go", "ACTS": "ACT"}
