"""Invariants of ``membership``, checked as things happen; a violation raises at the moment it occurs."""

from __future__ import annotations

from ..config import Policy
from ..protocol.effects import Activated, Effect, Installed
from ..view import View
from .host import Host
from .observer import Observer

__all__ = ["Checkers"]


class Checkers(Observer):
    """One view an epoch, rising epochs, a chain of parents, ready members, exactly the continuing members' reports."""

    def __init__(self) -> None:
        self._active: dict[tuple[str, int], View] = {}
        self._installed: dict[tuple[str, int], tuple[View, dict[str, bytes]]] = {}
        self._sides: dict[int, dict[str, View]] = {}
        self._epoch: dict[str, int] = {}
        self._known: dict[str, View] = {}
        self._who: dict[str, set[str]] = {}
        self._last: dict[str, View] = {}

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
        for other in self._sides.setdefault(view.epoch, {}).values():
            assert other.view_id == view.view_id or set(other.ids).isdisjoint(view.ids), f"{other} and {view} share members"
        self._sides[view.epoch][view.view_id] = view
        known = self._active.setdefault(self._key(view), view)
        assert known.view_id == view.view_id, f"two active views of epoch {view.epoch}: {known} and {view}"
        assert member_id in view, f"{member_id} acts in {view} without being a member"
        last = self._epoch.get(member_id, 0)
        assert view.epoch > last, f"{member_id} went from epoch {last} to {view.epoch}"
        self._epoch[member_id] = view.epoch
        self._descends(member_id, view)
        installed = self._installed.get(self._key(view))
        assert installed is not None and installed[0].view_id == view.view_id
        missing = set(view.ids) - self._who[view.view_id]
        assert not missing, f"{view} is active at {member_id} before {sorted(missing)} installed it"
        for later in self._active.values():
            if later.epoch >= view.epoch and later.cluster == view.cluster:
                self._chain(later)

    def _descends(self, member_id: str, view: View) -> None:
        """A member acts in one chain alone."""
        last, below = self._last.get(member_id, view), self._known.get(view.view_id)
        self._last[member_id] = view
        while below is not None and below.epoch > last.epoch:
            below = self._known.get(below.parent_id)
        assert below is None or below.view_id == last.view_id, f"{member_id} left {last} for {view}"

    def _key(self, view: View) -> tuple[str, int]:
        """What there may be one active view of: an epoch of a cluster. Under ``any`` each side is a chain of its own."""
        return (view.view_id if self.world.config.policy is Policy.ANY else view.cluster, view.epoch)

    def _chain(self, view: View) -> None:
        """Every active view among the ancestors of an active view must be the active one of its epoch."""
        below: View | None = view
        while below is not None and below.epoch > 1:
            parent = self._known.get(below.parent_id)
            active = None if parent is None else self._active.get(self._key(parent))
            assert active is None or active.view_id == below.parent_id, f"active {active} is no ancestor of {view}"
            below = parent

    def _chosen(self, host: Host) -> None:
        if host.machine.view is not None:
            self._known.setdefault(host.machine.view.view_id, host.machine.view)

    def _install(self, member_id: str, view: View, reports: dict[str, bytes]) -> None:
        self._who.setdefault(view.view_id, set()).add(member_id)
        known = self._installed.setdefault(self._key(view), (view, reports))
        if known[0].view_id == view.view_id:
            assert known[1] == reports, f"two sets of reports for {view}"
        before = self._known.get(view.parent_id)
        parent = None if before is None else self._installed.get(self._key(before))
        if parent is not None and parent[0].view_id == view.parent_id:
            continuing = {m.id for m in view.members if m.id in parent[0]}
            assert set(reports) == continuing, f"reports of {sorted(reports)} for continuing {sorted(continuing)}"
