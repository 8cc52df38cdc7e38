"""What several invariants need to know, found out once for all: updated before any of them is asked."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from ...errors import CodecError, StoppedError
from ...messages import Accept, Accepted, Ack, Ballot, Message, Ping, ViewRecord
from ...store_requests import CreateView, StoreOp
from ...view import Proposal, View
from ..world.host import Host
from ..world.in_memory_store import Change, ChangeKind
from ..world.network import codec_of
from ..world.observer import Hears, Observer, Sees, Thinks
from .inside import awaits

NEVER = float("-inf")

Key = tuple[str, Ballot]
"""A ballot of the instance that decides the successor of the view with that id."""

PINGS = 4096
"""The newest pings of one member that are remembered."""
EPOCHS = 3
"""Acks of that many earlier epochs are remembered for each pair of members."""


class Proposed(NamedTuple):
    """When and by whom a value was proposed first."""

    time: float
    by: str
    received: dict[str, float]
    """For each member that it removes: when the proposer had sent the latest ping whose ack it had got."""
    well: dict[str, float]
    """For each member that it removes: for how long that one and the proposer had both been well (see ``Health``)."""


PREFIX = "views/"
SERIES = "views"
"""The keys of records, and the series that they are: as designed, not as the code under test has them."""


class Health(Observer):
    """The truth about faults: which process was not well, and until when. Checkers of detection judge by it.

    A process is unwell while it is dead, stopped, paused, or held up, and at the moment in which its clock jumps. It is
    unwell, too, at each message from or to it that the network loses or delays: a cut link harms nobody until a message meets
    it. Where the fault is one end's own (a lossy or slow member), that end alone is to blame; else both are.
    """

    def __init__(self) -> None:
        self._touched: dict[str, float] = {}
        self._down: dict[str, int] = {}
        self.forged: set[str] = set()
        """Living processes in whose name a firewall refused a connection."""
        self.calm_since = 0.0
        """When anything was wrong, or changed by the script, last."""

    def well_since(self, member_id: str) -> float:
        """True time; ``inf`` for whoever is not well now."""
        host = self.world.hosts.get(member_id)
        if host is None or not host.alive or host.stopped is not None or self._down.get(member_id):
            return inf
        return self._touched.get(member_id, inf)

    def well_for(self, *member_ids: str) -> float:
        """Seconds for which all of these have been well; negative where one is not."""
        return self.now - max(self.well_since(key) for key in member_ids)

    def touch(self, *member_ids: str) -> None:
        """Something is wrong with these at this moment."""
        self.calm_since = self.now
        for key in member_ids:
            self._touched[key] = self.now

    def started(self, host: Host) -> None:
        """See ``Observer``."""
        self.touch(host.id)

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self.touch(host.id)

    def paused(self, host: Host) -> None:
        """See ``Observer``."""
        self.touch(host.id)
        self._down[host.id] = self._down.get(host.id, 0) + 1

    def resumed(self, host: Host) -> None:
        """See ``Observer``."""
        self.touch(host.id)
        self._down[host.id] = max(0, self._down.get(host.id, 0) - 1)

    def jumped(self, host: Host, seconds: float) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self.touch(host.id)

    def refused(self, host: Host, target: Host) -> None:
        """See ``Observer``."""
        self.touch(host.id)
        self.forged.add(target.id)

    def stopped(self, host: Host, error: StoppedError) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self.touch(host.id)

    def withheld(self, host: Host | None) -> None:  # noqa: ARG002 - no member is unwell for that
        """See ``Observer``."""
        self.touch()

    def lost(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._blame(host.id, target.id)

    def late(self, host: Host, target: Host, message: Message) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self._blame(host.id, target.id)

    def _blame(self, one: str, other: str) -> None:
        faulty = [key for key in (one, other) if self.world.faults.faulty(key)]
        self.touch(*(faulty or (one, other)))


class Record(Observer):
    """What was said and done so far: views, ballots, votes, contacts, acks, deaths.

    All of it comes from the wire and from what the script did, never from what a member believes.
    """

    def __init__(self, health: Health) -> None:
        self._health = health
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
        """Who voted, whether the vote was received or not."""
        self.counted: dict[Key, set[str]] = {}
        """Whose vote has reached the ballot's owner."""
        self.acked: dict[tuple[str, str], dict[int, float]] = {}
        """(who, whom): when one last acked the other, by its own clock (leases run by it), for each epoch that acks told."""
        self.contact: dict[tuple[str, str], float] = {}
        """(who, whom): when (true time) one sent the latest ping that the other acked to it.

        A repeated ping counts from when it was sent first: an ack does not say which of the two it answers.
        """
        self.received: dict[tuple[str, str], float] = {}
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
        """See ``Observer``."""
        return {
            Ping: self._ping,
            Ack: self._ack,
            Accept: lambda host, _, message: self._propose(host, message),
            Accepted: lambda host, _, message: self._cast(host, message),
        }

    def hears(self) -> Hears:
        """See ``Observer``."""
        return {Ack: self._contact, Accepted: self._count}

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Accept: self._propose, Accepted: self._own_vote}

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self.died[host.id] = self.now

    def adopted(self, host: Host, view: View) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self.meet(view)

    def installed(self, host: Host, view: View, reports: Mapping[str, bytes]) -> None:  # noqa: ARG002
        """See ``Observer``."""
        self.meet(view)

    def asked(self, host: Host, request: StoreOp) -> None:
        """See ``Observer``."""
        if isinstance(request, CreateView) and request.record.proposal is not None:
            self._first(host, request.record.proposal)

    def _ping(self, host: Host, target: Host | None, message: Ping) -> None:
        if target is not None:
            pings = self._pings.get(host.id)
            if pings is None:
                pings = self._pings[host.id] = {}
            elif len(pings) > PINGS:
                del pings[next(iter(pings))]
            pings.setdefault(message.seq, self.now)

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        if target is not None and message.target == host.id and self.pinged(target.id, message.seq):
            times = self.acked.get((host.id, target.id))
            if times is None:
                times = self.acked[host.id, target.id] = {}
            elif len(times) > EPOCHS:
                del times[next(iter(times))]
            times[message.epoch] = host.now

    def last_ack(self, who: str, whom: str, epoch: int) -> float:
        """When ``who`` last acked ``whom``, by its own clock, in views before ``epoch``.

        Later acks say that it knows a view of that epoch: nobody who may be out of it takes them for contact.
        """
        times = self.acked.get((who, whom), {})
        return max((at for told, at in times.items() if told < epoch), default=NEVER)

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
                if at > self.received.get(key, NEVER) and awaits(host.machine, message.seq, sender.id):
                    self.received[key] = at

    def _propose(self, host: Host, message: Accept) -> None:
        key, value = (message.parent_id, message.ballot), message.proposal
        if key not in self.values:
            self.values[key] = value
            self._first(host, value)
            self.ballots.setdefault(message.parent_id, []).append(message.ballot)

    def _first(self, host: Host, value: Proposal) -> None:
        if value not in self.proposed:
            out = [removal.member_id for removal in value.removed]
            received = {key: self.received.get((host.id, key), NEVER) for key in out}
            self.proposed[value] = Proposed(
                self.now, host.id, received, {key: self._health.well_for(key, host.id) for key in out}
            )

    def _cast(self, host: Host, message: Accepted) -> None:
        self.cast.setdefault((message.parent_id, message.ballot), set()).add(host.id)

    def _own_vote(self, host: Host, message: Accepted) -> None:
        self._cast(host, message)
        self._count(host, host, message)

    def _count(self, host: Host, sender: Host, message: Accepted) -> None:
        if message.ballot[1] == host.id:
            self.counted.setdefault((message.parent_id, message.ballot), set()).add(sender.id)


class Decision(NamedTuple):
    """One creation. ``by``: the process whose request it was."""

    key: str
    record: ViewRecord
    by: str
    time: float
    wipes: int
    """How often the store had been wiped before."""


class StoreLog(Observer):
    """What the shared store has decided so far: every record of a view that was validly created, kept for ever.

    It reads what is in the store, not what anybody believes to be there.
    """

    def __init__(self) -> None:
        self.decided: dict[str, Decision] = {}
        """By ``view_id``: created, at or above the compacted revision, and not taken back since."""
        self.standing: dict[str, Decision] = {}
        """What is in the store now, by key; records below the compacted revision, too."""
        self.newest: Decision | None = None
        """Of the valid ones since the store was wiped last."""
        self.wipes = 0
        self.compacted = 0

    def stored(self, host: Host | None, change: Change) -> None:
        """See ``Observer``."""
        if change.kind is ChangeKind.WIPE:
            self.wipes += 1
            self.compacted, self.newest = 0, None
            self.standing.clear()
        elif change.kind is ChangeKind.COMPACT and change.key == SERIES:
            self.compacted = change.number
        elif change.kind in (ChangeKind.DELETE, ChangeKind.TAKE_BACK):
            self._removed(change)
        elif change.kind is ChangeKind.CREATE and change.key.startswith(PREFIX) and host is not None:
            self._created(host, change)

    def _created(self, host: Host, change: Change) -> None:
        record = self.read(change.value)
        if record is None:
            return
        decision = self.standing[change.key] = Decision(change.key, record, host.id, self.now, self.wipes)
        if record.view.epoch >= self.compacted:
            self.decided.setdefault(record.view.view_id, decision)
            if self.newest is None or record.view.epoch > self.newest.record.view.epoch:
                self.newest = decision

    def _removed(self, change: Change) -> None:
        decision = self.standing.pop(change.key, None)
        if decision is not None and decision.record.view.epoch >= self.compacted:
            self.decided.pop(decision.record.view.view_id, None)
            if decision is self.newest:
                self.newest = max(self.standing.values(), key=lambda other: other.record.view.epoch, default=None)

    def read(self, value: bytes) -> ViewRecord | None:
        """What a value says, None where it is no record."""
        try:
            message = codec_of(self.world.config.job).decode(value).message
        except CodecError:
            return None
        return message if isinstance(message, ViewRecord) else None
