"""What this member believes of the others in its view: the detection half of membership.

A suspected member is trusted again after a rumour with a higher incarnation, or after it answers us; dead is final for a
lifetime. Beliefs decide nothing: a member is out when a view without it was chosen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

from ...member import Member
from ...messages import Status, Update
from ...transitions import Table
from ...view import Delta, View
from .lifeguard import Suspicion

NEVER = float("-inf")


class Sign(Enum):
    """The events that change a belief."""

    SUSPECTED = "no answer to us, or a rumour of that"
    ANSWERED = "answers us"
    REFUTED = "says so with a higher incarnation"
    PROVEN = "proof"


BELIEF: Table[Status, Sign] = Table(
    "belief",
    Status.ALIVE,
    {
        Status.ALIVE: {
            Sign.SUSPECTED: Status.SUSPECT,
            Sign.REFUTED: Status.ALIVE,
            Sign.PROVEN: Status.DEAD,
        },
        Status.SUSPECT: {
            Sign.SUSPECTED: Status.SUSPECT,
            Sign.ANSWERED: Status.ALIVE,
            Sign.REFUTED: Status.ALIVE,
            Sign.PROVEN: Status.DEAD,
        },
    },
)


@dataclass(slots=True)
class Peer:
    """Another member of the view.

    ``contact``: our clock before we sent the latest ping that it acked *to us*. ``since``: its silence counts from then at the
    earliest: from its admission, or from the end of a time in which we could receive nothing.
    """

    member: Member
    since: float
    status: Status = BELIEF.start
    incarnation: int = 0
    contact: float = NEVER
    met: float = NEVER
    """Like ``contact``, for acks that show that the peer had not reached our view yet: only a sign of life."""
    met_epoch: int = 0
    renewed: float = NEVER
    """When we last saw a renewal of its lease in the shared store: a sign of life, and no contact."""
    relayed: float = NEVER
    """When somebody last passed on its answer to us."""
    last_received: float = NEVER
    """When its latest message of any kind arrived. Proves that it can send, not that it can receive."""
    suspicion: Suspicion | None = None

    @property
    def last_sign(self) -> float:
        """The time of its latest sign of life; at least ``since``."""
        return max(self.contact, self.met, self.renewed, self.since)

    def learn(self, sign: Sign) -> None:
        """Change the belief; drop the suspicion unless the peer is a suspect."""
        self.status = BELIEF.after(self.status, sign)
        if self.status is not Status.SUSPECT:
            self.suspicion = None


class MemberTable:
    """Peers by id, in seniority order; without this member itself.

    A peer is made on first access: most of ten thousand members send nothing to most others.
    """

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._view: View | None = None
        self._peers: dict[str, Peer] = {}
        self._arrivals: list[tuple[int, float]] = []
        """(first seniority, since when): members from that seniority on have been in the view since then; for those that are no
        peers yet."""
        self._suspects: dict[str, Peer] = {}
        """Recently suspected peers: few ever are, and every packet reads them before and after it is handled."""
        self.incarnation = 0

    def __iter__(self) -> Iterator[Peer]:
        for member_id in () if self._view is None else self._view.ids:
            peer = self._peers.get(member_id) or self.get(member_id)
            if peer is not None:
                yield peer

    def __len__(self) -> int:
        return 0 if self._view is None else len(self._view) - (self._own_id in self._view)

    def get(self, member_id: str) -> Peer | None:
        """The peer with that id, if it is in the view."""
        peer = self._peers.get(member_id)
        if peer is None and self._view is not None and member_id in self._view and member_id != self._own_id:
            peer = self._peers[member_id] = Peer(self._view.member(member_id), self._arrived(member_id, self._view))
        return peer

    def _arrived(self, member_id: str, view: View) -> float:
        return self._arrivals[bisect_right(self._arrivals, (view.index(member_id), inf)) - 1][1]

    @property
    def asked_for(self) -> list[Peer]:
        """The peers made so far, in no particular order: of all others only the time of their arrival is known."""
        return list(self._peers.values())

    def suspect(self, peer: Peer, suspicion: Suspicion) -> None:
        """From now on ``peer`` is suspected."""
        peer.suspicion = suspicion
        peer.learn(Sign.SUSPECTED)
        self._suspects[peer.member.id] = peer

    def suspected(self) -> list[Peer]:
        """The suspected peers, in the order in which they became suspects."""
        if not self._suspects:
            return []
        for key in [key for key, peer in self._suspects.items() if peer.suspicion is None or self._peers.get(key) is not peer]:
            del self._suspects[key]
        return list(self._suspects.values())

    def adopt(self, view: View, contacts: Mapping[str, float], now: float) -> None:
        """Follow a new view: beliefs about remaining members are kept, ``contacts`` seeds those about new ones."""
        before, delta = self._view, Delta.between(self._view, view)
        if delta is not None:
            gone, came = delta.removed, len(view) - len(delta.joined)
            moved = {start - bisect_left(gone, start): since for start, since in self._arrivals}
            self._arrivals = [(start, since) for start, since in moved.items() if start < came]
            self._arrivals += [(came, now)] if delta.joined else []
        else:
            for member_id in () if before is None else before.ids:
                self.get(member_id)  # its seniority in the new view is unknown
            self._arrivals = [(0, now)]
        self._view = view
        self._peers = {key: peer for key, peer in self._peers.items() if key in view}
        for member_id, contact in contacts.items():
            if member_id in view and member_id != self._own_id and (before is None or member_id not in before):
                self._peers[member_id] = Peer(view.member(member_id), now, contact=contact)

    def postpone(self, late: float) -> None:
        """This member could receive nothing for ``late`` seconds: no silence counts from before the end of that time."""
        self._arrivals = [(start, since + late) for start, since in self._arrivals]
        for peer in self._peers.values():
            peer.since = peer.last_sign + late
            if peer.suspicion is not None:
                peer.suspicion.postpone(late)

    def received(self, member_id: str, now: float) -> None:
        """A message of ``member_id`` arrived."""
        peer = self._peers.get(member_id) or self.get(member_id)
        if peer is not None:
            peer.last_received = now

    def relayed(self, member_id: str, now: float) -> None:
        """Somebody passed on an answer of ``member_id``."""
        peer = self.get(member_id)
        if peer is not None:
            peer.relayed = now

    def answered(self, member_id: str, sent: float) -> Peer | None:
        """``member_id`` acked our ping sent at ``sent``."""
        peer = self.get(member_id)
        if peer is not None:
            peer.contact = max(peer.contact, sent)
        return peer

    def met(self, member_id: str, sent: float, epoch: int) -> None:
        """``member_id`` acked our ping sent at ``sent``, though we never followed the view that it holds, of ``epoch``."""
        peer = self.get(member_id)
        if peer is not None and sent > peer.met:
            peer.met, peer.met_epoch = sent, epoch

    def all_in(self, epoch: int) -> None:
        """All members have adopted the view of ``epoch``: their earlier acks (``met``) bind them as voters of it."""
        for peer in self._peers.values():
            if peer.met_epoch <= epoch:
                peer.contact = max(peer.contact, peer.met)

    def apply(self, update: Update) -> bool:
        """Whether a rumour about a peer is new by SWIM's order; ALIVE is applied at once, SUSPECT is left to the caller."""
        peer = self.get(update.member_id)
        if peer is None or peer.status is Status.DEAD:
            return False
        if update.status is Status.ALIVE:
            if update.incarnation <= peer.incarnation:
                return False
            peer.incarnation = update.incarnation
            peer.learn(Sign.REFUTED)
            return True
        if update.status is Status.SUSPECT:
            return update.incarnation >= peer.incarnation
        return False

    def trusted(self, member_id: str) -> bool:
        """Whether a member is believed alive (this member itself: always)."""
        peer = self._peers.get(member_id)
        if peer is not None:
            return peer.status is Status.ALIVE
        return member_id == self._own_id or (self._view is not None and member_id in self._view)
