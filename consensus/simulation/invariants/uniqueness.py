"""Invariant 1: one view an epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Policy
from ...view import View
from .invariant import Invariant

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Uniqueness"]


class Uniqueness(Invariant):
    """One ``view_id`` an activated epoch, whoever activates it.

    Under policy ``any`` the sides of a partition may go on apart: then no process acts in views of two sides, that is, in two
    views of one epoch, or in a view that does not descend from its last one (see ``Succession``).
    """

    number = 1
    title = "one view an epoch"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._active: dict[int, tuple[View, str, float]] = {}

    def activated(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        if self.world.config.policy is Policy.ANY:
            return
        first, who, when = self._active.setdefault(view.epoch, (view, host.id, self.now))
        if first.view_id != view.view_id:
            story = self.jury.story
            self.fail(
                f"two active views of epoch {view.epoch}: {story.name(who)} acts in {story.show(first)} since {when:.4f} s, "
                f"{story.name(host.id)} in {story.show(view)}"
            )
