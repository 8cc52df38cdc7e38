"""Decides which member may make the first view if the list of introducers does not determine it.

A list of numeric addresses is the same for all members, so its first address founds. A name that stands for several members is
not: each lookup shows the members that are up by then, and two members may both find themselves first. So with names every
member has one *vote*. A member that is first in its own list is a candidate and votes for itself; the others vote for the
candidate that is first in *their* list, or after ``_PREFERENCE`` for the candidate with the lowest address that they met (a
host may be known by another address elsewhere). A candidate founds with its voters, at least ``initial_size`` with itself.

A member takes its vote back only (1) after its candidate has given up its candidacy, which the candidate shows by a vote for
another or for nobody: votes for an old candidacy do not count any more; or (2) after the candidate is proven dead, and
``GRACE`` later, because its first view may still be on its way to us. So at any time the voters of two founders are different
members: with ``initial_size`` above half of the members there is one cluster or none. With less nothing can rule out two, and
the member that would found does not (``refused``, see ``runtime/net/names.py``).

Silence takes no vote back: the silent candidate may have founded. Then ``join_timeout`` ends this lifetime.
"""

from __future__ import annotations

from ...member import Address, Member
from ...messages import Vote
from ..state.join import Applicant, Applicants
from ..state.member_table import NEVER

GRACE = 0.6
"""Seconds from the proof that a candidate died to the next vote: many times what its last messages take."""

_PREFERENCE = 1.0
"""Seconds that a member waits for the first of its list. The choice of the candidate matters only for success, not for safety.
"""

_CHECK_EVERY = 1.0
"""A candidate that has been silent for so many seconds is checked."""


class Founding:
    """This member's vote, and the count of the others'."""

    def __init__(self, member: Member, now: float = 0.0) -> None:
        self._member = member
        self._started = now
        self._candidate: Member | None = None
        self._candidacy = 0
        self._turn = 0
        self._free_at = NEVER
        self._checked = NEVER

    @property
    def vote(self) -> Vote:
        """This member's vote, for its requests to others."""
        return Vote("" if self._candidate is None else self._candidate.id, self._candidacy, self._turn)

    @property
    def candidate(self) -> Member | None:
        """The member for which this one votes."""
        return self._candidate

    def consider(self, first: Address | None, founder: bool, applicants: Applicants, now: float) -> bool:
        """Vote, or take the vote back, if that is allowed. Returns whether anything changed.

        ``first``: the first introducer in this member's list; ``founder``: whether that is this member.
        """
        before = self._turn
        candidate = self._candidate
        if candidate is not None and self._given_up(candidate, founder, applicants):
            self._choose(None, 0)
        if self._candidate is None and now >= self._free_at:
            if founder:
                self._choose(self._member, self._turn + 1)
            elif (found := self._favourite(first, applicants, now)) is not None and found.vote is not None:
                self._choose(found.member, found.vote.candidacy)
        return self._turn != before

    def to_check(self, applicants: Applicants, now: float) -> Member | None:
        """The candidate, if it is time to check whether it still lives."""
        candidate = self._candidate
        if candidate is None or candidate.id == self._member.id:
            return None
        known = applicants.get(candidate.id)
        if now - max(self._checked, NEVER if known is None else known.last_received) < _CHECK_EVERY:
            return None
        self._checked = now
        return candidate

    def died(self, member_id: str, now: float) -> None:
        """The process of ``member_id`` is certainly gone."""
        if self._candidate is not None and self._candidate.id == member_id != self._member.id:
            self._choose(None, 0)
            self._free_at = now + GRACE

    def supporters(self, applicants: Applicants, now: float) -> list[Member]:
        """The other members that vote for this one now, or do not vote."""
        if self._candidate is None or self._candidate.id != self._member.id:
            return []
        return [
            applicant.member
            for applicant in applicants.fresh(now, wanting=False)
            if applicant.vote is None
            or (applicant.vote.founder, applicant.vote.candidacy) == (self._member.id, self._candidacy)
        ]

    def _given_up(self, candidate: Member, founder: bool, applicants: Applicants) -> bool:
        if candidate.id == self._member.id:
            return not founder
        known = applicants.get(candidate.id)
        return known is not None and known.vote is not None and known.vote.turn > self._candidacy

    def _favourite(self, first: Address | None, applicants: Applicants, now: float) -> Applicant | None:
        """The candidate to vote for, if there is one."""
        candidates = [
            applicant
            for applicant in applicants.fresh(now, wanting=False)
            if applicant.vote is not None and applicant.vote.founder == applicant.member.id
        ]
        best = [applicant for applicant in candidates if applicant.member.address == first]
        if not best and now - self._started >= _PREFERENCE:
            best = candidates
        return min(best, key=lambda applicant: applicant.member.address, default=None)

    def _choose(self, candidate: Member | None, candidacy: int) -> None:
        self._turn += 1
        self._candidate = candidate
        self._candidacy = candidacy
