"""The flush reports that travel with an INSTALL: n of them to each of n members, so a compact form matters."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..view import View


@dataclass(frozen=True, slots=True)
class Reports:
    """The flush reports of the first ``count`` members of a view, each different one once.

    ``groups``: (report, seniority of the members that gave it), the commonest report first: it lists no members and stands for
    all that no other group lists. Normally nearly all reports are equal.
    """

    count: int
    groups: tuple[tuple[bytes, tuple[int, ...]], ...]
    _told: tuple[weakref.ref[View] | None, Mapping[str, bytes] | None] = field(
        default=(None, None), init=False, repr=False, compare=False
    )
    """The latest result of ``by_id`` and its view: as a rule every caller asks for the same view."""

    @classmethod
    def of(cls, reports: Sequence[bytes]) -> Reports:
        """From ``reports`` in seniority order."""
        who: dict[bytes, list[int]] = {}
        for index, report in enumerate(reports):
            who.setdefault(report, []).append(index)
        groups = sorted(who.items(), key=lambda item: (-len(item[1]), item[1]))
        named = tuple((report, tuple(indices) if place else ()) for place, (report, indices) in enumerate(groups))
        return cls(len(reports), named)

    def by_id(self, view: View) -> Mapping[str, bytes] | None:
        """Reports by member id, in seniority order; None if they do not fit ``view``."""
        about, known = self._told
        if about is None or about() is not view:
            known = self._by_id(view)
            object.__setattr__(self, "_told", (weakref.ref(view), known))
        return known

    def _by_id(self, view: View) -> Mapping[str, bytes] | None:
        if not 0 <= self.count <= len(view) or bool(self.count) != bool(self.groups):
            return None
        named = {index: report for report, indices in self.groups[1:] for index in indices}
        if len(named) != sum(len(indices) for _, indices in self.groups) or any(not 0 <= i < self.count for i in named):
            return None
        usual = self.groups[0][0] if self.groups else b""
        return {key: named.get(index, usual) for index, key in enumerate(view.ids[: self.count])}
