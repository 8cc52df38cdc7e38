"""How an applicant learns that the job has ended: leaving members announce it, and the applicant checks which members are gone.

A member whose program has ended says so to the applicants that asked it lately, and in all its later replies. An applicant may
conclude that there is nothing to join, even if the last member never received its request. Two conditions: the newest reply
from the job announced an end; and each member of the newest view that the applicant knows has announced its end or is dead, or
the store says that all are gone.
"""

from __future__ import annotations

from ...member import Address, Member
from ..state.join import FRESH, Search

CHECKED = 16
"""The most members without an announced end that an applicant checks for life at a time."""


class Askers:
    """The addresses that a member has answered lately: applicants, as far as it knows."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last_received: dict[Address, float] = {}
        """The time of the latest request by address, oldest first."""

    def received(self, address: Address, now: float) -> None:
        """A process at ``address`` asks to join."""
        self._last_received.pop(address, None)
        if len(self._last_received) >= self._limit:
            del self._last_received[next(iter(self._last_received))]
        self._last_received[address] = now

    def fresh(self, now: float) -> list[Address]:
        """The addresses that may still be in use."""
        return [address for address, received in self._last_received.items() if now - received <= FRESH]


class Ending:
    """What an applicant knows about the end of the job."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._ended: set[str] = set()
        """Members that announced the end of their programs."""
        self._dead: set[str] = set()
        self._newest = False
        """Whether the newest reply from a member announced its program's end."""

    def told(self, sender: str, *, ended: bool) -> None:
        """``sender`` answered; ``ended``: its program has ended. Replies of other applicants do not count."""
        if self._search.cluster is not None and sender in self._search.cluster:
            self._newest = ended
            self._dead.discard(sender)  # a firewall may have refused the connection that proved its death
            if ended:
                self._ended.add(sender)

    def died(self, member_id: str) -> None:
        """A check found that the member is dead."""
        self._dead.add(member_id)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to join. A view that the store shows as orphaned is forgotten (``Search.lost``)."""
        return self._newest and not self._unknown

    @property
    def doubtful(self) -> list[Member]:
        """Members that may be left, to be checked for life."""
        return self._unknown[:CHECKED] if self._newest else []

    @property
    def _unknown(self) -> list[Member]:
        view = self._search.cluster
        known = self._ended | self._dead
        return [] if view is None else [member for member in view.members if member.id not in known]
