"""Invariant 9: laggards catch up; there is no permanently stale view (Rapid's bug)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...view import View
from .invariant import Invariant

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Laggards"]


class Laggards(Invariant):
    """Whoever is concerned by a chosen view (in it, or removed by it) follows it or a later one, or stops, within ``patience``.

    Counted from when it and one *teacher* have both been well without a break: a process that follows the view or a later one,
    and that can be expected to meet the laggard, being in the view that the laggard knows. Where all who knew the view are dead
    nobody can be told, and nothing is expected.
    """

    number = 9
    title = "laggards catch up"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._follows: dict[str, View] = {}
        self._met: set[str] = set()

    @property
    def patience(self) -> float:
        """Ten rounds of probes, each stretched to the utmost by its sender's own bad health."""
        config = self.world.config
        return 10 * config.probe_interval * (config.awareness_max + 1) / 2

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self._follows[host.id] = view
        if view.view_id not in self._met:
            self._met.add(view.view_id)
            self.jury.at(self.now + self.patience, lambda: self._look(view))

    def _look(self, view: View) -> None:
        parent = self.jury.record.parent(view)
        ids = [*view.ids, *(member.id for member in parent.members if member.id not in view)] if parent else view.ids
        behind = [key for key in ids if self._behind(key, view)]
        if not behind:
            return
        ground, again = self.jury.ground, False
        for key in behind:
            for teacher in self._teachers(key, view):
                again = True
                if ground.well_for(key, teacher) > self.patience:
                    self._stale(key, teacher, view)
        if again:
            self.jury.at(self.now + self.patience / 2, lambda: self._look(view))

    def _behind(self, member_id: str, view: View) -> bool:
        host = self.world.hosts.get(member_id)
        if host is None or not host.alive or host.stopped is not None:
            return False
        follows = self._follows.get(member_id)
        return follows is None or follows.epoch < view.epoch

    def _teachers(self, member_id: str, view: View) -> list[str]:
        follows = self._follows.get(member_id)
        if follows is None:
            return []  # still a joiner: its own search asks
        found = []
        for key in follows.ids:
            host, known = self.world.hosts[key], self._follows.get(key)
            if host.running and known is not None and known.epoch >= view.epoch:
                found.append(key)
        return found

    def _stale(self, member_id: str, teacher: str, view: View) -> None:
        story = self.jury.story
        well = self.jury.ground.well_for(member_id, teacher)
        self.fail(
            f"{story.name(member_id)} still follows {story.show(self._follows.get(member_id))}, though "
            f"{story.name(teacher)} knows {story.show(view)} and both have been well for {well:.2f} s"
        )
