"""The flush reports that travel with an INSTALL: n of them to each of n members, so how they are told matters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .view import View

__all__ = ["Reports"]


@dataclass(frozen=True, slots=True)
class Reports:
    """The flush reports of the first ``count`` members of a view, each different one once.

    ``groups``: (report, seniority of those who gave it), the commonest first, which names nobody and stands for all others. At
    a healthy moment nearly all are equal.
    """

    count: int
    groups: tuple[tuple[bytes, tuple[int, ...]], ...]

    @classmethod
    def of(cls, reports: Sequence[bytes]) -> Reports:
        """From the reports in seniority order."""
        who: dict[bytes, list[int]] = {}
        for index, report in enumerate(reports):
            who.setdefault(report, []).append(index)
        groups = sorted(who.items(), key=lambda item: (-len(item[1]), item[1]))
        named = tuple((report, tuple(indices) if place else ()) for place, (report, indices) in enumerate(groups))
        return cls(len(reports), named)

    def by_id(self, view: View) -> tuple[tuple[str, bytes], ...] | None:
        """(member id, report) in seniority order; None where this cannot be about ``view``."""
        if not 0 <= self.count <= len(view) or bool(self.count) != bool(self.groups):
            return None
        named = {index: report for report, indices in self.groups[1:] for index in indices}
        if len(named) != sum(len(indices) for _, indices in self.groups) or any(not 0 <= i < self.count for i in named):
            return None
        return tuple((key, named.get(index, self.groups[0][0])) for index, key in enumerate(view.ids[: self.count]))
