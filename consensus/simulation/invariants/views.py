"""Invariants 1 and 2: one view an epoch; epochs rise, and views form a chain."""

from __future__ import annotations

from bisect import bisect_left, insort

from ...config import Policy
from ...view import NO_VIEW_ID, View
from ..world.host import Host
from .inside import cluster_of
from .invariant import Facts, Invariant


class Uniqueness(Invariant):
    """One ``view_id`` an activated epoch of a cluster, whoever activates it; clusters founded apart are two.

    Clusters that were founded apart have epochs of their own; where a store decides it has one, as long as nobody wipes it.
    Under policy ``any`` the sides of a partition may go on apart: then two active views of one epoch share no member, and
    nobody acts in a view that does not descend from its last one (see ``Succession``).
    """

    number = 1
    title = "one view an epoch"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._active: dict[tuple[str, int], list[tuple[View, str, float]]] = {}

    def activated(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        sides = self._active.setdefault((self._job_of(view), view.epoch), [])
        if any(first.view_id == view.view_id for first, _, _ in sides):
            return
        apart = self.world.config.policy is Policy.ANY
        for first, who, when in sides:
            if apart and set(first.ids).isdisjoint(view.ids):
                continue
            log = self.log
            self.fail(
                f"two active views of epoch {view.epoch}: {log.name(who)} acts in {log.show(first)} since {when:.4f} s, "
                f"{log.name(host.id)} in {log.show(view)}"
            )
        sides.append((view, host.id, self.now))

    def _job_of(self, view: View) -> str:
        if self.world.config.policy is not Policy.STORAGE:
            return cluster_of(view)
        decision = self.store_log.decided.get(view.view_id)
        return "" if decision is None else f"after {decision.wipes} wipes"


class Succession(Invariant):
    """Epochs strictly rise per process, chosen and active ones alike; parents form a chain.

    A process acts only in descendants of the view that it acted in before; every view's epoch is its parent's plus one; and
    (policies that never fork) of any two active views one is the other's ancestor.
    """

    number = 2
    title = "epochs rise, parents form a chain"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._known: dict[str, View] = {}
        self._acting: dict[str, View] = {}
        self._active: dict[str, dict[int, View]] = {}
        self._epochs: dict[str, list[int]] = {}

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        last = self._known.get(host.id)
        if last is not None and view.epoch <= last.epoch:
            log = self.log
            self.fail(f"{log.name(host.id)} follows {log.show(view)} after {log.show(last)}")
        self._known[host.id] = view
        self._born(view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        log = self.log
        last = self._acting.get(host.id)
        if last is not None:
            if view.epoch <= last.epoch:
                self.fail(f"{log.name(host.id)} went from {log.show(last)} to {log.show(view)}")
            self._descends(view, last, f"{log.name(host.id)} acts in both")
        self._acting[host.id] = view
        if self.world.config.policy is not Policy.ANY:
            self._in_line(view)

    def _in_line(self, view: View) -> None:
        """Compare with the active views before and after it, of the same founding."""
        cluster = cluster_of(view)
        active, epochs = self._active.setdefault(cluster, {}), self._epochs.setdefault(cluster, [])
        if view.epoch in active:
            return
        place = bisect_left(epochs, view.epoch)
        if place > 0:
            self._descends(view, active[epochs[place - 1]], "both are active")
        if place < len(epochs):
            self._descends(active[epochs[place]], view, "both are active")
        insort(epochs, view.epoch)
        active[view.epoch] = view

    def _born(self, view: View) -> None:
        parent = self.record.parent(view)
        if view.parent_id == NO_VIEW_ID:
            if view.epoch != 1 and self.world.config.policy is not Policy.STORAGE:  # there ``Records`` looks
                self.fail(f"{self.log.show(view)} has no parent")
        elif parent is not None and parent.epoch + 1 != view.epoch:
            self.fail(f"{self.log.show(view)} follows {self.log.show(parent)}")

    def _descends(self, view: View, older: View, why: str) -> None:
        """Walk from ``view`` to the epoch of ``older``; a gap in what is known proves nothing."""
        below: View | None = view
        while below is not None and below.epoch > older.epoch:
            below = self.record.parent(below)
        if below is not None and below.view_id != older.view_id:
            log = self.log
            self.fail(f"active {log.show(older)} is no ancestor of {log.show(view)}: {why}")
