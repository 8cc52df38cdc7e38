"""Invariant 2: epochs rise, and views form a chain."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from ...config import Policy
from ...view import NO_VIEW_ID, View
from .inside import cluster_of
from .invariant import Invariant

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Succession"]


class Succession(Invariant):
    """Epochs strictly rise per process, chosen and active ones alike; parents form a chain.

    A process acts only in descendants of the view that it acted in before; every view's epoch is its parent's plus one; and
    (policies that never fork) of any two active views one is the other's ancestor.
    """

    number = 2
    title = "epochs rise, parents form a chain"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._known: dict[str, View] = {}
        self._acting: dict[str, View] = {}
        self._active: dict[str, dict[int, View]] = {}
        self._epochs: dict[str, list[int]] = {}

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        last = self._known.get(host.id)
        if last is not None and view.epoch <= last.epoch:
            story = self.jury.story
            self.fail(f"{story.name(host.id)} follows {story.show(view)} after {story.show(last)}")
        self._known[host.id] = view
        self._born(view)

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        story = self.jury.story
        last = self._acting.get(host.id)
        if last is not None:
            if view.epoch <= last.epoch:
                self.fail(f"{story.name(host.id)} went from {story.show(last)} to {story.show(view)}")
            self._descends(view, last, f"{story.name(host.id)} acts in both")
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
        parent = self.jury.record.parent(view)
        if view.parent_id == NO_VIEW_ID:
            if view.epoch != 1 and self.world.config.policy is not Policy.STORAGE:  # there ``Records`` looks
                self.fail(f"{self.jury.story.show(view)} has no parent")
        elif parent is not None and parent.epoch + 1 != view.epoch:
            self.fail(f"{self.jury.story.show(view)} follows {self.jury.story.show(parent)}")

    def _descends(self, view: View, older: View, why: str) -> None:
        """Walk from ``view`` to the epoch of ``older``; a gap in what is known proves nothing."""
        below: View | None = view
        while below is not None and below.epoch > older.epoch:
            below = self.jury.record.parent(below)
        if below is not None and below.view_id != older.view_id:
            story = self.jury.story
            self.fail(f"active {story.show(older)} is no ancestor of {story.show(view)}: {why}")
