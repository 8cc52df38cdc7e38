"""Names instead of ids: who is who in a story, and how several of them are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

RUN = 4
"""So many numbered members in a row or more are written ``m5..m14``."""

_NUMBERED = re.compile(r"(\D+)(\d+)")


class People:
    """In the order in which they were met: seniority, then joiners."""

    def __init__(self, names: Mapping[str, str]) -> None:
        """``names``: member id -> name."""
        self._names = dict(names)

    def meet(self, member_id: str, name: str) -> None:
        """Somebody new; whoever has a name keeps it."""
        if member_id not in self._names:
            lives = sum(known.rstrip("'") == name for known in self._names.values())
            self._names[member_id] = name + "'" * lives  # a later lifetime

    def rank(self, member_id: str) -> int:
        """How many were met before."""
        return list(self._names).index(member_id)

    def name(self, member_id: str) -> str:
        """Its name; a stranger's id in short."""
        return self._names.get(member_id, member_id[:6])

    def names(self, ids: Iterable[str]) -> str:
        """Several in their order, each once, with spaces between; long rows of numbered ones abbreviated."""
        wanted = frozenset(ids)
        known = [name for key, name in self._names.items() if key in wanted]
        known += sorted(key[:6] for key in wanted if key not in self._names)
        return " ".join(_shortened(known)) or "nobody"

    def translate(self, text: str) -> str:
        """``text`` with names where it speaks of members by id and address."""
        for key, name in self._names.items():
            text = re.sub(rf"{key[:6]}\w*(@[\w.]+:\d+)?", name, text)
        return text


def _shortened(names: list[str]) -> list[str]:
    rows: list[list[str]] = []
    for name in names:
        if rows and _follows(rows[-1][-1], name):
            rows[-1].append(name)
        else:
            rows.append([name])
    return [name for row in rows for name in ([f"{row[0]}..{row[-1]}"] if len(row) >= RUN else row)]


def _follows(one: str, other: str) -> bool:
    first, second = _NUMBERED.fullmatch(one), _NUMBERED.fullmatch(other)
    if first is None or second is None:
        return False
    return first[1] == second[1] and int(first[2]) + 1 == int(second[2])
