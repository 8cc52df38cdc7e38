"""The end of a job as whoever is about to join it learns of it: told by those who leave, found out about those who are gone.

A member whose program has come to its end says so to whoever asked it lately, and in all that it answers from then on. So an
applicant may conclude that there is nothing to join, although the last member never heard of it: where that is the newest word
from the job, and each member of the newest view that it knows has said so, or is dead, or the store says that all are.
"""

from __future__ import annotations

from ...member import Address, Member
from ..state.join import FRESH, Search

CHECKED = 16
"""Of so many members that have said nothing of an end an applicant finds out at a time whether they live."""


class Askers:
    """Whom a member has answered lately: applicants, as far as it knows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heard: dict[Address, float] = {}
        """When, in that order."""

    def heard(self, address: Address, now: float) -> None:
        """Somebody there asks to join."""
        self._heard.pop(address, None)
        if len(self._heard) >= self._limit:
            del self._heard[next(iter(self._heard))]
        self._heard[address] = now

    def fresh(self, now: float) -> list[Address]:
        """Who may still be there."""
        return [address for address, heard in self._heard.items() if now - heard <= FRESH]


class Ending:
    """What an applicant knows about the end of the job."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._ended: set[str] = set()
        """Members whose programs have come to their ends, as they said."""
        self._dead: set[str] = set()
        self._newest = False
        """Whether the newest word from a member was of its program's end."""

    def told(self, sender: str, *, ended: bool) -> None:
        """Somebody answered; ``ended``: its program has come to its end. What other applicants say is no word of the job."""
        if self._search.cluster is not None and sender in self._search.cluster:
            self._newest = ended
            if ended:
                self._ended.add(sender)

    def died(self, member_id: str) -> None:
        """A check found that it is dead."""
        self._dead.add(member_id)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to join. A view that is known no more is one that the store says nobody is left of."""
        return self._newest and not self._unknown

    @property
    def doubtful(self) -> list[Member]:
        """Who may be left: whether they live is to be checked."""
        return self._unknown[:CHECKED] if self._newest else []

    @property
    def _unknown(self) -> list[Member]:
        view = self._search.cluster
        known = self._ended | self._dead
        return [] if view is None else [member for member in view.members if member.id not in known]
