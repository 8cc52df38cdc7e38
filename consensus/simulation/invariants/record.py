"""What was said and done so far, kept once for all checkers: views, ballots, votes, contacts, acks, deaths.

All of it comes from the wire and from what the script did, never from what a member believes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ...errands import CreateView, Errand
from ...messages import Accept, Accepted, Ack, Ballot, Ping
from ...view import Proposal, View
from .inside import awaits
from .witness import Hears, Sees, Thinks, Witness

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["NEVER", "Key", "Proposed", "Record"]

NEVER = float("-inf")

Key = tuple[str, Ballot]
"""A ballot of the instance that decides the successor of the view with that id."""

PINGS = 4096
"""The newest pings of one member that are remembered."""


class Proposed(NamedTuple):
    """When and by whom a value was proposed first."""

    time: float
    by: str
    heard: dict[str, float]
    """For each member that it removes: when the proposer had sent the latest ping whose ack it had got."""
    well: dict[str, float]
    """For each member that it removes: for how long that one and the proposer had both been well (see ``Ground``)."""


class Record(Witness):
    """Updated before any invariant is asked."""

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self.views: dict[str, View] = {}
        """Every view that somebody follows, by id: nobody else can tell of it."""
        self.ids: dict[str, frozenset[str]] = {}
        """Its member ids, for a fast look."""
        self.values: dict[Key, Proposal] = {}
        """What each ballot proposes."""
        self.proposed: dict[Proposal, Proposed] = {}
        self.ballots: dict[str, list[Ballot]] = {}
        """Ballots that proposed something, by parent."""
        self.cast: dict[Key, set[str]] = {}
        """Who voted, whether it was heard or not."""
        self.counted: dict[Key, set[str]] = {}
        """Whose vote has reached the ballot's owner."""
        self.acked: dict[tuple[str, str], float] = {}
        """(who, whom): when one last sent an ack to the other, by its own clock (leases run by it)."""
        self.contact: dict[tuple[str, str], float] = {}
        """(who, whom): when (true time) one sent the latest ping that the other acked to it."""
        self.heard: dict[tuple[str, str], float] = {}
        """The same, but only of acks that one still waited for when they came: what it goes by."""
        self.died: dict[str, float] = {}
        self._pings: dict[str, dict[int, float]] = {}

    def meet(self, view: View) -> View:
        """``view`` exists."""
        if view.view_id not in self.views:
            self.views[view.view_id] = view
            self.ids[view.view_id] = frozenset(view.ids)
        return view

    def parent(self, view: View) -> View | None:
        """The view that ``view`` follows, if it was ever heard of."""
        return self.views.get(view.parent_id)

    def newcomers(self, view: View) -> frozenset[str]:
        """Whom ``view`` admitted; nobody where its parent is unknown (founding)."""
        before = self.ids.get(view.parent_id)
        self.meet(view)
        return frozenset() if before is None else self.ids[view.view_id] - before

    def pinged(self, member_id: str, seq: int) -> bool:
        """Whether that process sent that ping; an ack of another may be meant for an earlier lifetime at its address."""
        return seq in self._pings.get(member_id, ())

    # Hooks

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {
            Ping: self._ping,
            Ack: self._ack,
            Accept: lambda host, _, message: self._propose(host, message),
            Accepted: lambda host, _, message: self._cast(host, message),
        }

    def hears(self) -> Hears:
        """See ``Witness``."""
        return {Ack: self._contact, Accepted: self._count}

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {Accept: self._propose, Accepted: self._own_vote}

    def killed(self, host: Host) -> None:
        """See ``Witness``."""
        self.died[host.id] = self.now

    def adopted(self, host: Host, view: View) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self.meet(view)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Witness``."""
        self.meet(view)

    def asked(self, host: Host, errand: Errand) -> None:
        """See ``Witness``."""
        if isinstance(errand, CreateView) and errand.record.proposal is not None:
            self._first(host, errand.record.proposal)

    def _ping(self, host: Host, target: Host | None, message: Ping) -> None:
        if target is not None:
            pings = self._pings.get(host.id)
            if pings is None:
                pings = self._pings[host.id] = {}
            elif len(pings) > PINGS:
                del pings[next(iter(pings))]
            pings[message.seq] = self.now

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        if target is not None and message.target == host.id and self.pinged(target.id, message.seq):
            self.acked[host.id, target.id] = host.now

    def _contact(self, host: Host, sender: Host, message: Ack) -> None:
        view = host.machine.view
        if view is not None and message.epoch >= view.epoch and message.view_id != view.view_id:
            return  # from a view that the receiver does not know, and which may be without it
        if message.target == sender.id:
            pings = self._pings.get(host.id)
            at = None if pings is None else pings.get(message.seq)
            if at is not None:
                key = (host.id, sender.id)
                if at > self.contact.get(key, NEVER):
                    self.contact[key] = at
                if at > self.heard.get(key, NEVER) and awaits(host.machine, message.seq, sender.id):
                    self.heard[key] = at

    def _propose(self, host: Host, message: Accept) -> None:
        key, value = (message.parent_id, message.ballot), message.proposal
        if key not in self.values:
            self.values[key] = value
            self._first(host, value)
            self.ballots.setdefault(message.parent_id, []).append(message.ballot)

    def _first(self, host: Host, value: Proposal) -> None:
        if value not in self.proposed:
            ground = self.jury.ground
            out = [removal.member_id for removal in value.removed]
            heard = {key: self.heard.get((host.id, key), NEVER) for key in out}
            self.proposed[value] = Proposed(self.now, host.id, heard, {key: ground.well_for(key, host.id) for key in out})

    def _cast(self, host: Host, message: Accepted) -> None:
        self.cast.setdefault((message.parent_id, message.ballot), set()).add(host.id)

    def _own_vote(self, host: Host, message: Accepted) -> None:
        self._cast(host, message)
        self._count(host, host, message)

    def _count(self, host: Host, sender: Host, message: Accepted) -> None:
        if message.ballot[1] == host.id:
            self.counted.setdefault((message.parent_id, message.ballot), set()).add(sender.id)
