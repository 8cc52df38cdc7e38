"""Invariant 4: of the values chosen for one epoch at most one can ever activate."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ...config import Policy
from ...messages import Ready
from ...view import NO_VIEW_ID, View
from .inside import cluster_of
from .invariant import Invariant
from .witness import Sees, Thinks

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Choice"]


class _Chosen(NamedTuple):
    view: View
    driver: str
    voters: frozenset[str]
    """Those whose votes its driver had counted."""


class Choice(Invariant):
    """Two values chosen for one epoch differ only where every common voter is dead, and only one of them can ever activate.

    A value is chosen when the owner of a ballot follows it. It can activate as long as every member of it said READY for it, or
    is alive and follows no other view of that epoch or a later one. Two values that share a member exclude each other, because
    a member says READY for one view an epoch (checked here, too); two that share none must not both be able to.

    ``Ballots`` checks the rules of voting that this follows from, vote by vote.
    """

    number = 4
    title = "at most one value of an epoch can activate"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._chosen: dict[tuple[str, int], list[_Chosen]] = {}
        self._met: set[str] = set()
        self._follows: dict[str, View] = {}
        self._ready: dict[tuple[str, int], str] = {}

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {Ready: lambda host, _, message: self._say_ready(host, message)}

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {Ready: self._say_ready}

    def _say_ready(self, host: Host, message: Ready) -> None:
        first = self._ready.setdefault((host.id, message.epoch), message.view_id)
        if first != message.view_id:
            views, story = self.jury.record.views, self.jury.story
            shown = [story.show(views.get(key)) for key in (first, message.view_id)]
            self.fail(f"{story.name(host.id)} says READY for {shown[1]} after {shown[0]} of the same epoch")

    def adopted(self, host: Host, view: View) -> None:
        """See ``Witness``."""
        self._follows[host.id] = view
        if view.view_id in self._met:
            return
        self._met.add(view.view_id)
        if self.world.config.policy is not Policy.MAJORITY:
            return  # both may live on, or the store has one: see ``Records``
        chosen = _Chosen(view, host.id, self._voters(host, view))
        others = self._chosen.setdefault((cluster_of(view), view.epoch), [])
        for other in others:
            self._compare(other, chosen)
        others.append(chosen)

    def _voters(self, host: Host, view: View) -> frozenset[str]:
        record = self.jury.record
        parent = record.parent(view)
        if parent is None or view.parent_id == NO_VIEW_ID:
            return frozenset()
        found: set[str] = set()
        for ballot in record.ballots.get(parent.view_id, ()):
            if ballot[1] == host.id and record.values[parent.view_id, ballot].apply(parent).view_id == view.view_id:
                found |= record.counted.get((parent.view_id, ballot), set())
        return frozenset(found)

    def _compare(self, one: _Chosen, two: _Chosen) -> None:
        story, died = self.jury.story, self.jury.record.died
        both = f"{story.name(one.driver)} chose {story.show(one.view)}, {story.name(two.driver)} chose {story.show(two.view)}"
        living = [key for key in sorted(one.voters & two.voters) if key not in died]
        if living:
            self.fail(f"{both}, and {story.names(living)}, who voted for both, live")
        if not set(one.view.ids) & set(two.view.ids) and self._possible(one.view) and self._possible(two.view):
            self.fail(f"{both}, and both can activate")

    def _possible(self, view: View) -> bool:
        return all(self._may_be_ready(key, view) for key in view.ids)

    def _may_be_ready(self, member_id: str, view: View) -> bool:
        if self._ready.get((member_id, view.epoch)) == view.view_id:
            return True
        host, follows = self.world.hosts.get(member_id), self._follows.get(member_id)
        if host is None or not host.alive or host.stopped is not None:
            return False
        return follows is None or follows.epoch < view.epoch or follows.view_id == view.view_id
