"""Joining: the applicants that a member knows, and a joiner's own search for the cluster.

Founding: a member that may found (its address is the first introducer, or there are none) does so once ``initial_size`` members
have met *and* every other introducer has said that it knows no cluster, or has had time to say so: much time if a process
listens there (a stopped or overloaded member may know a cluster), little if none does. So neither starting all members at once
nor restarting the first introducer makes a second cluster of one job. If introducers are names, see ``founding``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ...config import Config, Liveness
from ...member import Address, Member, format_address, whole_cohorts
from ...messages import JoinReply, Vote
from ...view import View
from .member_table import NEVER
from .side import Relation, related

FRESH = 1.5
"""An applicant that has not asked again for so many seconds is forgotten."""

FOUNDING_PATIENCE = 0.6
"""Seconds that a founder waits for introducers that do not answer: two rounds of the members' beacon."""

HASTY = 5
"""The first so many requests go out every 0.1 s, later ones less and less often, down to one in ``RARELY`` seconds, which is
well below ``FRESH``."""

RARELY = 0.4

OTHERS = 16
"""The most members of the cluster that are asked, in turn, besides the coordinator."""

MUTE_PATIENCE = 10.0
"""``FOUNDING_PATIENCE`` for an introducer that listens and does not answer (at most half of ``join_timeout``)."""


@dataclass(slots=True)
class Applicant:
    """A member that asked to join. ``contact``: our clock before the ping that it acked; ``ready``: since when it ``wants``."""

    member: Member
    wants: bool
    last_received: float
    ready: float
    contact: float = NEVER
    pinged: float = NEVER
    vote: Vote | None = None


class Applicants:
    """The members that ask to join. The longest ready, by its own statement, comes first, also at a new coordinator."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, Applicant] = {}
        self._at: dict[Address, str] = {}
        """The one whose request arrived last at each address."""
        self._next_look = NEVER

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Applicant]:
        return iter(self._known.values())

    def received(
        self, member: Member, wants: bool, now: float, vote: Vote | None = None, waited: float = 0.0
    ) -> Applicant | None:
        """A request arrived; returns None if the queue is full. A vote older than the known one is ignored.

        An earlier lifetime at its address is gone: that is dropped.
        """
        known = self._known.get(member.id)
        if known is None:
            self.drop(self._at.get(member.address, ""))
            if len(self._known) >= self._limit:
                return None
            known = self._known[member.id] = Applicant(member, False, now, now)
            self._at[member.address] = member.id
        known.ready = min(known.ready, now - waited) if wants and known.wants else now - waited
        known.wants = wants
        known.last_received = now
        if vote is not None and (known.vote is None or vote.turn >= known.vote.turn):
            known.vote = vote
        return known

    def get(self, member_id: str) -> Applicant | None:
        """The applicant with that id."""
        return self._known.get(member_id)

    def drop(self, member_id: str) -> None:
        """The applicant was admitted, or is dead."""
        known = self._known.pop(member_id, None)
        if known is not None:
            del self._at[known.member.address]

    def admitted(self, view: View) -> None:
        """Drop the applicants that are in ``view``."""
        for key in [key for key in self._known if key in view]:
            self.drop(key)

    def expire(self, now: float) -> None:
        """Forget applicants that do not ask any more (checked a few times a second)."""
        if now < self._next_look:
            return
        self._next_look = now + FRESH / 6
        for key in [key for key, applicant in self._known.items() if now - applicant.last_received > FRESH]:
            self.drop(key)

    def fresh(self, now: float, *, wanting: bool) -> list[Applicant]:
        """Applicants that asked lately, by arrival; ``wanting``: only those ready to be admitted, longest wait first."""
        found = [applicant for applicant in self._known.values() if now - applicant.last_received <= FRESH]
        return sorted((each for each in found if each.wants), key=lambda each: each.ready) if wanting else found

    def admissible(self, now: float) -> list[Member]:
        """Members that want to be admitted and acked us within 1 s: a joiner that is gone would hold up the next change.

        Those of a cohort once all of it does.
        """
        return whole_cohorts(a.member for a in self.fresh(now, wanting=True) if now - a.contact <= 1.0)

    def any_admissible(self, now: float) -> bool:
        """Whether any member is admissible (asked after every packet)."""
        known = self._known.values()
        if not any(a.wants and now - a.last_received <= FRESH and now - a.contact <= 1.0 for a in known):
            return False
        return bool(self.admissible(now))

    @property
    def contacts(self) -> dict[str, float]:
        """Contact by member id."""
        return {key: applicant.contact for key, applicant in self._known.items()}


class Search:
    """The search of a member without a view."""

    def __init__(
        self, config: Config, member: Member, introducers: tuple[Address, ...], founder: bool, now: float, refused: str = ""
    ) -> None:
        """``refused``: why this member, or the first introducer, must not found (for the error's text)."""
        self._config = config
        self._member = member
        self._added: list[Address] = []
        self.set(introducers, founder, refused)
        self.started = now
        self.next_send = now
        self.last_reply = now
        self.wants = False
        self.ready = now
        """Since when this member has wanted to be admitted."""
        self.cluster: View | None = None
        self.coordinator: Member | None = None
        self.beacon: Member | None = None
        """The coordinator of a cluster, or of a newer view of it, that we have not received yet."""
        self._asked = 0
        self._patient = 0
        """The number of requests answered in a row."""
        self._answered_by_coordinator = False
        self._confirmed = now
        self._lonely: set[Address] = set()
        self._listening: set[Address] = set()

    def set(self, introducers: tuple[Address, ...], founder: bool, refused: str) -> None:
        """Use this list of introducers from now on; ``founder``: whether this member may found."""
        own = self._member.address
        self.founder = founder
        self.refused = refused
        self.first = own if founder else next(iter(introducers), None)
        self.introducers = [address for address in dict.fromkeys((*introducers, *self._added)) if address != own]

    def add(self, addresses: tuple[Address, ...]) -> None:
        """More addresses to ask, besides the list."""
        self._added += addresses
        own = self._member.address
        self.introducers += [each for each in dict.fromkeys(addresses) if each != own and each not in self.introducers]

    def replied(self, sender: str, source: Address, reply: JoinReply, now: float) -> None:
        """An introducer answered, or a coordinator's beacon arrived; ``sender``: its id.

        Only a member's word confirms a view: two joiners could confirm each other one whose members are all dead.
        """
        if reply.view is None and reply.delta is None and not reply.view_id:
            if source in self.introducers:
                self._lonely.add(source)
            return
        self._lonely.discard(source)
        self._answered_by_coordinator |= self.coordinator is not None and source == self.coordinator.address
        known = self.cluster
        told = reply.view if reply.delta is None or known is None else reply.delta.apply(known)
        same = known if known is not None and reply.view_id == known.view_id else None
        by_member = (reply.coordinator is not None and sender == reply.coordinator.id) or sender in (told or same or ())
        if by_member or not self.found:
            self.last_reply = now
        if told is not None:
            if self._better(told, now):
                self.cluster, self.coordinator, self.beacon = told, reply.coordinator, None
                self._confirmed = now if by_member else self._confirmed
        elif same is not None:
            if by_member:
                self.coordinator, self._confirmed = reply.coordinator, now
        elif known is None or reply.epoch > known.epoch or now - self._confirmed > FRESH:
            self.beacon = reply.coordinator

    def rivals(self, view: View) -> bool:
        """Whether ``view`` belongs to another side than the known cluster."""
        if self.cluster is None:
            return False
        return related(self._config.policy, self._member.id, self.cluster, view) is Relation.RIVAL

    def _better(self, view: View, now: float) -> bool:
        """Whether ``view`` is newer than the known one. Of two sides the first met is kept while it answers."""
        if self.cluster is None or now - self._confirmed > FRESH:
            return True
        return not self.rivals(view) and view.epoch >= self.cluster.epoch

    def attend(self, address: Address, listening: bool) -> None:
        """Whether a process that may be of this job listens at ``address``, even if it does not answer."""
        (self._listening.add if listening else self._listening.discard)(address)

    def targets(self, met: Iterable[Address] = ()) -> list[Address]:
        """The addresses to ask: the coordinator once it is known, and the introducers; before that also ``met``."""
        beacon = [] if self.beacon is None else [self.beacon.address]
        if self.coordinator is not None and self.cluster is not None:
            # Ask one of the others too, in turn: the coordinator may die while we wait.
            others = [*(member.address for member in self.cluster.members[:OTHERS]), *self.introducers]
            return list(dict.fromkeys([self.coordinator.address, *beacon, others[self._asked % len(others)]]))
        return list(dict.fromkeys([*beacon, *self.introducers, *met]))

    def interval(self, share: float) -> float:
        """Seconds from this request to the next: growing while requests are answered, as there may be a thousand joiners.

        ``share``: random, from 0 to 1.
        """
        self._asked += 1
        if self._answered_by_coordinator or self.cluster is None:
            self._patient += 1
        else:
            self._patient = 0
        self._answered_by_coordinator = False
        least = 0.1 if self.wants or self.cluster is None else 0.4
        return max(least, min(RARELY, 0.1 * 1.5 ** max(0, self._patient - HASTY))) * (0.75 + 0.5 * share)

    @property
    def found(self) -> bool:
        """Whether a cluster is known."""
        return self.cluster is not None or self.beacon is not None

    def lost(self, now: float) -> None:
        """No member of the found cluster is left: the search begins again."""
        self.cluster = self.coordinator = self.beacon = None
        self.started = now

    def ask_at(self, moment: float) -> None:
        """Send the next request at ``moment``."""
        self.next_send = moment

    def hurry(self, now: float) -> None:
        """Send the next request at once, and further ones often for a while."""
        self.next_send = now
        self._patient = 0

    def impatient(self) -> None:
        """Send requests often for a while, from the next one on."""
        self._patient = 0

    def may_found(self, applicants: int, now: float) -> bool:
        """Whether this member may make the first view now."""
        if not self.founder or self.found or applicants + 1 < self._config.initial_size:
            return False
        consulted = self._lonely.issuperset(self.introducers)
        if consulted and (self.introducers or not self._config.introducers):
            return True
        mute = self._listening.intersection(self.introducers) - self._lonely
        patience = min(MUTE_PATIENCE, self._config.join_timeout / 2) if mute else FOUNDING_PATIENCE
        return now - self.started >= patience

    def failure(self, now: float) -> str | None:
        """Why the search has finally failed; None while it has not."""
        patience = self._config.join_timeout
        if self.found:
            if now - self.last_reply < patience:
                return None
            return f"the cluster was found, but no member has answered for {patience:g} s: are they running, and in reach?"
        if now - self.started < patience:
            return None
        return self.refused or self._unmet(patience)

    def _unmet(self, patience: float) -> str:
        if self.founder:
            wanted = f"fewer than initial_size={self._config.initial_size} members met within join_timeout={patience:g} s"
            where = " with the same storage and job" if self._config.liveness is Liveness.LEASES else ""
            return f"{wanted}: start the others{where}, or lower initial_size"
        silent = [format_address(address) for address in self.introducers if address not in self._lonely]
        if silent:
            return f"not let in by introducers {', '.join(silent)} within join_timeout={patience:g} s"
        return (
            f"the introducers answered but belong to no cluster within join_timeout={patience:g} s: "
            "is the first introducer running, and are initial_size members started?"
        )
