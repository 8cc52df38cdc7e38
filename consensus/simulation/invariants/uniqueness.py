"""Invariant 1: one view an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Policy
from ...view import View
from .inside import cluster_of
from .invariant import Invariant

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Uniqueness"]


class Uniqueness(Invariant):
    """One ``view_id`` an activated epoch of a cluster, whoever activates it; clusters founded apart are two.

    Clusters that were founded apart have epochs of their own; where a store decides it has one, as long as nobody wipes it.
    Under policy ``any`` the sides of a partition may go on apart: then two active views of one epoch share no member, and
    nobody acts in a view that does not descend from its last one (see ``Succession``).
    """

    number = 1
    title = "one view an epoch"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._active: dict[tuple[str, int], list[tuple[View, str, float]]] = {}

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        sides = self._active.setdefault((self._job_of(view), view.epoch), [])
        if any(first.view_id == view.view_id for first, _, _ in sides):
            return
        apart = self.world.config.policy is Policy.ANY
        for first, who, when in sides:
            if apart and set(first.ids).isdisjoint(view.ids):
                continue
            story = self.jury.story
            self.fail(
                f"two active views of epoch {view.epoch}: {story.name(who)} acts in {story.show(first)} since {when:.4f} s, "
                f"{story.name(host.id)} in {story.show(view)}"
            )
        sides.append((view, host.id, self.now))

    def _job_of(self, view: View) -> str:
        if self.world.config.policy is not Policy.STORAGE:
            return cluster_of(view)
        entry = self.jury.ledger.decided.get(view.view_id)
        return "" if entry is None else f"after {entry.wipes} wipes"
