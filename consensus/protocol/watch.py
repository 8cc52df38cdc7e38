"""Who watches whom in a view beyond ``mesh_limit``: a few fixed neighbours, where SWIM pings somebody else every time.

Everybody stands in ``RINGS`` rings, each a rotation of the (random) member ids, and watches its successor and its predecessor
in each; so watching is mutual, every member has the same number of watchers, and a change of the view moves only those beside
whoever came or went. Known neighbours have several merits over random ones (SWIM, section 4.3; Rapid's K rings, section 4.1):

* each ping is expected. One slot of ``Config.watch_interval`` after a member fell silent somebody misses its ping and asks at
  once, where a random prober comes along after an exponentially distributed time;
* its watchers are known, so a suspicion is told to those that can confirm or refute it and to nobody else;
* introductions (see ``envelope``) are made once a neighbour and not once a ping.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from ..view import View

__all__ = ["RINGS", "SLACK", "Watch", "watchers"]

RINGS = 4

SLACK = 0.05
"""Seconds by which a ping may be later than expected before somebody asks: a ping too many is all that it costs."""


def watchers(member_id: str, view: View) -> tuple[str, ...]:
    """Who watches a member of ``view`` (and whom it watches), ring by ring; the same one may stand beside it in several."""
    return tuple(key for ring in range(RINGS) for key in _beside(ring, member_id, view.ids))


def _place(ring: int, member_id: str) -> str:
    cut = ring * len(member_id) // RINGS
    return member_id[cut:] + member_id[:cut]


def _beside(ring: int, member_id: str, ids: Iterable[str]) -> tuple[str, str]:
    """Successor and predecessor of a member in a ring of ``ids``; itself where there is nobody else."""
    own = _place(ring, member_id)
    places = {_place(ring, key): key for key in ids if key != member_id}
    if not places:
        return member_id, member_id
    after = min((place for place in places if place > own), default=None)
    before = max((place for place in places if place < own), default=None)
    return places[min(places) if after is None else after], places[max(places) if before is None else before]


class Watch:
    """The neighbours of one member: whose turn it is to be pinged, and whose ping is overdue. Empty in small views."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._view: View | None = None
        self._due: dict[str, float] = {}
        """When the next ping of each neighbour is missed."""
        self._turn = 0
        self.slots: tuple[str, ...] = ()

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._due

    def adopt(self, view: View | None, interval: float, now: float) -> None:
        """Follow a new view (None: one in which everybody watches everybody)."""
        old, self._view = self._view, view
        if view is None or self._own_id not in view:
            self.slots, self._due = (), {}
            return
        self.slots = self._neighbours(old, view)
        fresh = now + interval + self._lap(interval)
        self._due = {key: self._due.get(key, fresh) for key in self.slots if key != self._own_id}

    def _neighbours(self, old: View | None, view: View) -> tuple[str, ...]:
        """Only rings are searched where somebody beside us is gone: a view has a thousand members, and a thousand adopt it."""
        if old is None or old.view_id != view.parent_id or not self.slots:
            return watchers(self._own_id, view)
        new = [member.id for member in reversed(view.members) if member.id not in old]
        slots: tuple[str, ...] = ()
        for ring in range(RINGS):
            beside = self.slots[2 * ring : 2 * ring + 2]
            stay = all(key in view for key in beside)
            slots += _beside(ring, self._own_id, (*beside, *new) if stay else view.ids)
        return slots

    def turn(self) -> str:
        """Whom to ping in this slot."""
        self._turn = (self._turn + 1) % len(self.slots)
        return self.slots[self._turn]

    def heard(self, member_id: str, interval: float, now: float) -> None:
        """A member pinged us; the next one is due a lap later."""
        if member_id in self._due:
            self._due[member_id] = now + self._lap(interval)

    def missed(self, interval: float, now: float) -> list[str]:
        """Whose ping has not come in time; each is returned once a lap."""
        late = [key for key, due in self._due.items() if now >= due]
        for key in late:
            self._due[key] = now + self._lap(interval)
        return late

    def postpone(self, late: float) -> None:
        """Nothing could be heard for ``late`` seconds."""
        self._due = {key: due + late for key, due in self._due.items()}

    def deadline(self) -> float:
        """When the next ping is missed."""
        return min(self._due.values(), default=inf)

    @staticmethod
    def _lap(interval: float) -> float:
        return 2 * RINGS * interval + SLACK
