"""Broken links between living members: two cannot reach each other, though others reach both, and no group of both can work.

SWIM rightly calls neither of them dead: they answer through helpers. But their data planes wait for each other forever. So a
member whose direct pings to another stay unanswered for ``link_timeout``, over TCP too, reports the broken link. A report of
either end suffices; it is repeated as long as the link is broken, and forgotten soon after. From the broken pairs ``cut_off``
decides which members have to go, with the same result at all members that know the same pairs. A wrong choice costs a member,
never agreement: whatever the reason, a quorum excludes a living member only after it stops acking it (see ``acceptor``).

This works up to ``mesh_limit`` members, where all ping all each round; beyond that ``step_timeout`` ends a call that waits for
a broken link.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from math import inf

from ...view import View
from .quorum import is_quorum

KEEP = 2.5
"""Seconds that another member's report lasts; it is repeated every second at the latest."""

Pair = tuple[str, str]
"""Two ids, the lesser first."""


def pair(one: str, other: str) -> Pair:
    """The pair of two ids."""
    return (one, other) if one < other else (other, one)


def cut_off(view: View, broken: Collection[Pair], dead: AbstractSet[str], discounted: AbstractSet[str]) -> tuple[str, ...]:
    """The members that have to go so that all remaining ones reach each other; empty if no member could lead such a change.

    The most senior member that reaches a quorum leads, and all members that it does not reach go. Of the others, the member
    with the most broken links goes first; of several with equally many, the most junior.
    """
    left = {both for both in broken if both[0] in view and both[1] in view}  # a leaver may drive a view without itself
    for leader in view.ids:
        reached = [each for each in view.ids if each not in dead and pair(leader, each) not in left]
        if leader not in dead and is_quorum(view, frozenset(reached), discounted):
            break
    else:
        return ()
    out = {each for each in view.ids if each not in dead and each not in reached}
    while True:
        lacking = Counter(each for both in left if out.isdisjoint(both) and dead.isdisjoint(both) for each in both)
        if not lacking:
            return tuple(each for each in view.ids if each in out)
        out.add(max(lacking, key=lambda each: (lacking[each], view.index(each))))


class Links:
    """The links that this member knows to be broken: its own, by its own pings, and those that others report."""

    def __init__(self, own_id: str, patience: float) -> None:
        """``patience``: seconds without a direct answer after which a link is broken; 0: never."""
        self._own_id = own_id
        self._patience = patience
        self._answered: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        """When each member was pinged in the last round that went to all."""
        self._missed: dict[str, float] = {}
        """The members whose direct answers are missing, and since when."""
        self._woke = -inf
        """Since when this member has received what it was sent: answers to earlier pings may have been lost without a broken
        link, as those to a host that was suspended."""
        self._own: dict[str, float] = {}
        """The members to which our link is broken, and since when that is known."""
        self._reports: dict[Pair, tuple[float, float]] = {}
        """Reports of other members: when they arrived first and last."""

    def asked(self, member_ids: Collection[str], now: float) -> None:
        """These members are pinged, as in every round. Pings show what leases hide: a member can renew its lease and ack
        nothing.
        """
        for member_id in member_ids:
            if (before := self._asked.get(member_id)) is not None:
                self.missed(member_id, before)
            self._asked[member_id] = now

    def missed(self, member_id: str, sent: float) -> None:
        """A ping sent at ``sent`` is not answered yet (a later one may be)."""
        if sent > self._answered.get(member_id, sent - 1.0):
            self._missed.setdefault(member_id, max(sent, self._woke))

    def answered(self, member_id: str, now: float) -> None:
        """A direct answer of a member of the view arrived."""
        self._answered[member_id] = now
        self._missed.pop(member_id, None)
        self._own.pop(member_id, None)

    def begin(self) -> None:
        """From now on all members are pinged, after a time in which hardly any was: answers missed so far mean nothing."""
        self._missed.clear()
        self._asked.clear()

    def overslept(self, late: float, now: float) -> None:
        """This member could receive nothing for ``late`` seconds, until now."""
        self._woke = now
        self._missed = {member_id: since + late for member_id, since in self._missed.items()}

    def silent_for(self, member_id: str, now: float) -> float:
        """Seconds for which direct answers have been missing, once that is long enough to call the link broken; else 0."""
        waited = now - self._missed.get(member_id, now)
        return waited if waited >= self._patience > 0.0 else 0.0

    def broken(self, member_id: str) -> bool:
        """Whether our link to that member is broken."""
        return member_id in self._own

    @property
    def any_broken(self) -> bool:
        """Whether any of our links is broken."""
        return bool(self._own)

    def reported(self, source: str, accused: str, now: float) -> bool:
        """``source`` cannot reach ``accused``; returns whether that was unknown."""
        if source == self._own_id:
            fresh = accused not in self._own
            self._own.setdefault(accused, now)
            return fresh
        first, _ = self._reports.get(pair(source, accused), (now, now))
        fresh = pair(source, accused) not in self._reports
        self._reports[pair(source, accused)] = (first, now)
        return fresh

    def adopt(self, view: View, *, crowded: bool = False) -> None:
        """Follow a new view: each broken pair in it has to be reported again. ``crowded``: no link is judged there."""
        self._answered = {} if crowded else {member_id: time for member_id, time in self._answered.items() if member_id in view}
        self._missed = {} if crowded else {key: since for key, since in self._missed.items() if key in view}
        self._asked = {key: time for key, time in self._asked.items() if key in view}
        self._own.clear()
        self._reports.clear()

    def known(self, now: float) -> dict[Pair, float]:
        """All broken links, and since when each is known; old reports are forgotten."""
        if not self._own and not self._reports:
            return {}
        self._reports = {both: times for both, times in self._reports.items() if now < times[1] + KEEP}
        found = {both: first for both, (first, _) in self._reports.items()}
        for member_id, since in self._own.items():
            both = pair(self._own_id, member_id)
            found[both] = min(since, found.get(both, since))
        return found

    def deadline(self) -> float:
        """When the next report is forgotten."""
        return min(last for _, last in self._reports.values()) + KEEP if self._reports else inf
