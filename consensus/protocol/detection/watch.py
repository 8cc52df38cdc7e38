"""Which members watch which in a view beyond ``mesh_limit``: a few fixed neighbours; SWIM pings another member each time.

Each member is in ``RINGS`` rings, each a rotation of the (random) member ids, and watches its successor and its predecessor in
each. So watching is mutual, every member has the same number of watchers, and a change of the view affects only the neighbours
of members that came or went. Fixed neighbours have advantages over random ones (SWIM, section 4.3; Rapid's K rings, section
4.1):

* each ping is expected: one slot of ``Config.watch_interval`` after a member fell silent, a neighbour misses its ping and asks
  at once, while a random prober would come after an exponentially distributed time;
* the watchers of a member are known, so a suspicion is sent only to the members that can confirm or refute it;
* introductions (see ``envelope``) are made once per neighbour and not once per ping.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import inf

from ...view import View

RINGS = 4

SLACK = 0.05
"""Seconds by which a ping may be late before the neighbour pings itself; a ping too many is the only cost of a short slack."""


FEW = 64
"""Up to so many newcomers are compared with the own neighbours one by one; for more the whole ring is made."""


def watchers(member_id: str, view: View) -> tuple[str, ...]:
    """The members that watch a member of ``view`` (and that it watches), ring by ring; one may be its neighbour in several."""
    return tuple(key for ring in range(RINGS) for key in _beside(ring, member_id, _ring(ring, view)))


def _place(ring: int, member_id: str) -> str:
    cut = ring * len(member_id) // RINGS
    return member_id[cut:] + member_id[:cut]


def _ring(ring: int, view: View) -> tuple[tuple[str, str], ...]:
    """All members of ``view`` by place: (place, id)."""
    return view.find(f"ring {ring}", lambda: _sorted(ring, view.ids))


def _sorted(ring: int, ids: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({(_place(ring, key), key) for key in ids}))


def _beside(ring: int, member_id: str, order: tuple[tuple[str, str], ...]) -> tuple[str, str]:
    """Successor and predecessor of a member in a ring, given by its ``order``, which has at least one member."""
    own = (_place(ring, member_id), member_id)
    place = bisect_left(order, own)
    after = place + 1 if place < len(order) and order[place] == own else place
    return order[after % len(order)][1], order[place - 1][1]


class Watch:
    """The neighbours of one member: which one to ping next, and whose ping is overdue. Empty in small views."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._view: View | None = None
        self._due: dict[str, float] = {}
        """When the next ping of each neighbour is overdue."""
        self._turn = 0
        self.slots: tuple[str, ...] = ()

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._due

    def adopt(self, view: View | None, interval: float, now: float) -> None:
        """Follow a new view (None: a view in which all watch all)."""
        old, self._view = self._view, view
        if view is None or self._own_id not in view:
            self.slots, self._due = (), {}
            return
        self.slots = self._neighbours(old, view)
        fresh = now + interval + self._lap(interval)
        self._due = {key: self._due.get(key, fresh) for key in self.slots if key != self._own_id}

    def _neighbours(self, old: View | None, view: View) -> tuple[str, ...]:
        """Search a whole ring only if a neighbour in it is gone: a view has a thousand members, and a thousand adopt it."""
        if old is None or old.view_id != view.parent_id or not self.slots or len(view.since(old).newcomers) > FEW:
            return watchers(self._own_id, view)
        new = view.since(old).newcomers
        slots: tuple[str, ...] = ()
        for ring in range(RINGS):
            beside = self.slots[2 * ring : 2 * ring + 2]
            stay = all(key in view for key in beside)
            slots += _beside(ring, self._own_id, _sorted(ring, (*beside, *new)) if stay else _ring(ring, view))
        return slots

    def turn(self) -> str:
        """Id of the neighbour to ping in this slot."""
        self._turn = (self._turn + 1) % len(self.slots)
        return self.slots[self._turn]

    def received_ping(self, member_id: str, interval: float, now: float) -> None:
        """A member pinged us; its next ping is due a lap later."""
        if member_id in self._due:
            self._due[member_id] = now + self._lap(interval)

    def missed(self, interval: float, now: float) -> list[str]:
        """Neighbours whose ping has not arrived in time; each is returned once a lap."""
        late = [key for key, due in self._due.items() if now >= due]
        for key in late:
            self._due[key] = now + self._lap(interval)
        return late

    def postpone(self, late: float) -> None:
        """This member could receive nothing for ``late`` seconds."""
        self._due = {key: due + late for key, due in self._due.items()}

    def deadline(self) -> float:
        """When the next ping is overdue."""
        return min(self._due.values()) if self._due else inf

    @staticmethod
    def _lap(interval: float) -> float:
        return 2 * RINGS * interval + SLACK
