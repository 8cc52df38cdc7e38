"""Invariants of ``membership``, checked as things happen; a violation raises at the moment it occurs."""

from __future__ import annotations

from ..protocol.effects import Activated, Effect, Installed
from ..view import View
from .host import Host
from .observer import Observer

__all__ = ["Checkers"]


class Checkers(Observer):
    """One view an epoch, rising epochs, a chain of parents, ready members, exactly the continuing members' reports."""

    def __init__(self) -> None:
        self._active: dict[int, View] = {}
        self._installed: dict[int, tuple[View, dict[str, bytes]]] = {}
        self._epoch: dict[str, int] = {}
        self._known: dict[str, View] = {}
        self._who: dict[str, set[str]] = {}

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        if isinstance(effect, Installed):
            self._chosen(host)
            self._install(host.id, effect.view, dict(effect.reports))
        elif isinstance(effect, Activated):
            self._chosen(host)
            self._activate(host.id, effect.view)

    def settled(self, host: Host) -> None:
        """See ``Observer``."""
        self._chosen(host)

    def _activate(self, member_id: str, view: View) -> None:
        known = self._active.setdefault(view.epoch, view)
        assert known.view_id == view.view_id, f"two active views of epoch {view.epoch}: {known} and {view}"
        assert member_id in view, f"{member_id} acts in {view} without being a member"
        last = self._epoch.get(member_id, 0)
        assert view.epoch > last, f"{member_id} went from epoch {last} to {view.epoch}"
        self._epoch[member_id] = view.epoch
        installed = self._installed.get(view.epoch)
        assert installed is not None and installed[0].view_id == view.view_id
        missing = set(view.ids) - self._who[view.view_id]
        assert not missing, f"{view} is active at {member_id} before {sorted(missing)} installed it"
        for later in self._active.values():
            if later.epoch >= view.epoch:
                self._chain(later)

    def _chain(self, view: View) -> None:
        """Every active view among the ancestors of an active view must be the active one of its epoch."""
        below: View | None = view
        while below is not None and below.epoch > 1:
            active = self._active.get(below.epoch - 1)
            assert active is None or active.view_id == below.parent_id, f"active {active} is no ancestor of {view}"
            below = self._known.get(below.parent_id)

    def _chosen(self, host: Host) -> None:
        if host.machine.view is not None:
            self._known.setdefault(host.machine.view.view_id, host.machine.view)

    def _install(self, member_id: str, view: View, reports: dict[str, bytes]) -> None:
        self._who.setdefault(view.view_id, set()).add(member_id)
        known = self._installed.setdefault(view.epoch, (view, reports))
        if known[0].view_id == view.view_id:
            assert known[1] == reports, f"two sets of reports for {view}"
        parent = self._installed.get(view.epoch - 1)
        if parent is not None and parent[0].view_id == view.parent_id:
            continuing = {m.id for m in view.members if m.id in parent[0]}
            assert set(reports) == continuing, f"reports of {sorted(reports)} for continuing {sorted(continuing)}"
