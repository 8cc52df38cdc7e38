"""Invariants of ``membership``, checked as things happen; a violation raises at the moment it occurs."""

from __future__ import annotations

from ..view import View

__all__ = ["Checkers"]


class Checkers:
    """One view an epoch, rising epochs, a chain of parents, exactly the continuing members' reports."""

    def __init__(self) -> None:
        self._active: dict[int, View] = {}
        self._installed: dict[int, tuple[View, dict[str, bytes]]] = {}
        self._epoch: dict[str, int] = {}

    def activated(self, member_id: str, view: View) -> None:
        """``member_id`` acts in ``view``."""
        known = self._active.setdefault(view.epoch, view)
        assert known.view_id == view.view_id, f"two active views of epoch {view.epoch}: {known} and {view}"
        assert member_id in view, f"{member_id} acts in {view} without being a member"
        last = self._epoch.get(member_id, 0)
        assert view.epoch > last, f"{member_id} went from epoch {last} to {view.epoch}"
        self._epoch[member_id] = view.epoch
        installed = self._installed.get(view.epoch)
        assert installed is not None and installed[0].view_id == view.view_id

    def installed(self, view: View, reports: dict[str, bytes]) -> None:
        """Somebody got everybody's reports for ``view``."""
        for writer, report in reports.items():
            assert report == f"{writer}:{view.epoch}".encode(), f"a report of another epoch in {view}: {report!r}"
        known = self._installed.setdefault(view.epoch, (view, reports))
        if known[0].view_id == view.view_id:
            assert known[1] == reports, f"two sets of reports for {view}"
        parent = self._installed.get(view.epoch - 1)
        if parent is not None and parent[0].view_id == view.parent_id:
            continuing = {m.id for m in view.members if m.id in parent[0]}
            assert set(reports) == continuing, f"reports of {sorted(reports)} for continuing {sorted(continuing)}"
