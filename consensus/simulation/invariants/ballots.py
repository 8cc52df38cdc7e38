"""The rules of voting behind invariants 3 and 4, as they show on the wire, checked apart from the code meant to keep them.

A broken rule forks only in rare histories; here the first vote, promise or ack that breaks it is a violation at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...messages import Accept, Accepted, Ack, Ballot, Prepare, Promise
from ...view import Cause
from .invariant import SLACK, Invariant
from .record import NEVER, Key
from .witness import Hears, Sees, Thinks

if TYPE_CHECKING:
    from ..host import Host
    from .jury import Jury

__all__ = ["Ballots"]


class Ballots(Invariant):
    """Paxos, and the other side of the lease.

    A ballot is its owner's, round 0 the parent's most senior member's; one value a ballot; no promise or vote below a promise;
    a promise tells the highest vote; a proposer keeps the highest value that it was told. Nobody votes out without proof (or
    the leaver's wish) whom it acked less than T_excl ago, and whoever it so voted out it never acks again in that epoch.
    """

    number = 4
    title = "the rules of voting"

    def __init__(self, jury: Jury) -> None:
        super().__init__(jury)
        self._told: dict[Key, Ballot] = {}
        self._promised: dict[tuple[str, str], Ballot] = {}
        self._voted: dict[tuple[str, str], Ballot] = {}
        self._timely: dict[tuple[str, str], set[Ballot]] = {}
        """Ballots whose ACCEPT came before a promise forbade it: voted for, though that is said only with the flush report."""
        self._shunned: dict[tuple[str, str], set[str]] = {}

    def sees(self) -> Sees:
        """See ``Witness``."""
        return {
            Ack: self._ack,
            Prepare: lambda host, _, message: self._own(host, message),
            Promise: lambda host, _, message: self._promise(host, message),
            Accept: lambda host, _, message: self._propose(host, message),
            Accepted: lambda host, _, message: self._vote(host, message),
        }

    def hears(self) -> Hears:
        """See ``Witness``."""
        return {Promise: self._hear, Accept: lambda host, _, message: self._come(host, message)}

    def thinks(self) -> Thinks:
        """See ``Witness``."""
        return {
            Prepare: self._own,
            Promise: self._promise_itself,
            Accept: self._propose_itself,
            Accepted: self._vote,
        }

    def _name(self, host: Host) -> str:
        return self.jury.story.name(host.id)

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        if target is not None and self._shunned and message.target == host.id:
            shunned = self._shunned.get((host.id, message.view_id))
            if shunned is not None and target.id in shunned and self.jury.record.pinged(target.id, message.seq):
                self.fail(f"{self._name(host)} acks {self._name(target)}, whom it voted out")

    def _own(self, host: Host, message: Prepare | Accept) -> None:
        if message.ballot[1] != host.id:
            self.fail(f"{self._name(host)} uses the ballot {message.ballot} of {self.jury.story.name(message.ballot[1])}")

    def _hear(self, host: Host, sender: Host, message: Promise) -> None:  # noqa: ARG002
        if message.ballot[1] == host.id and message.accepted_ballot is not None:
            key, told = (message.parent_id, message.ballot), message.accepted_ballot
            if key not in self.jury.record.values:  # later ones came too late to bind the proposer
                self._told[key] = max(told, self._told.get(key, told))

    def _promise_itself(self, host: Host, message: Promise) -> None:
        self._promise(host, message)
        self._hear(host, host, message)

    def _promise(self, host: Host, message: Promise) -> None:
        key = (host.id, message.parent_id)
        promised = self._promised.get(key, message.ballot)
        if message.ballot < promised:
            self.fail(f"{self._name(host)} promises {message.ballot} too late: it had promised {promised}")
        self._promised[key] = message.ballot
        voted, told = self._voted.get(key), message.accepted_ballot
        if voted is not None and (told is None or told < voted):
            self.fail(f"{self._name(host)} promises {message.ballot} without telling its vote for {voted}")

    def _come(self, host: Host, message: Accept) -> None:
        key = (host.id, message.parent_id)
        if message.ballot >= self._promised.get(key, message.ballot):
            self._timely.setdefault(key, set()).add(message.ballot)

    def _propose_itself(self, host: Host, message: Accept) -> None:
        self._propose(host, message)
        self._come(host, message)

    def _propose(self, host: Host, message: Accept) -> None:
        ballot, record = message.ballot, self.jury.record
        self._own(host, message)
        self._keeps(host, message)
        known = record.values[message.parent_id, ballot]
        if known != message.proposal:
            self.fail(f"{self._name(host)} proposes two values under {ballot}: {known} and {message.proposal}")
        parent = record.views.get(message.parent_id)
        if ballot[0] == 0 and parent is not None and parent.members[0].id != host.id:
            self.fail(f"{self._name(host)} takes round 0 of {self.jury.story.show(parent)}")

    def _keeps(self, host: Host, message: Accept) -> None:
        """The value must be the one told with the highest ballot, or one that the proposer accepted under a higher."""
        record = self.jury.record
        told = self._told.pop((message.parent_id, message.ballot), None)
        if told is None:
            return
        seen = [
            record.values[message.parent_id, ballot]
            for ballot in record.ballots.get(message.parent_id, ())
            if told <= ballot < message.ballot
        ]
        if message.proposal not in seen:
            self.fail(f"{self._name(host)} proposes anew under {message.ballot} though {told} was accepted: {message.proposal}")

    def _vote(self, host: Host, message: Accepted) -> None:
        record = self.jury.record
        key = (host.id, message.parent_id)
        promised = self._promised.get(key, message.ballot)
        if message.ballot < promised and message.ballot not in self._timely.get(key, ()):
            self.fail(f"{self._name(host)} votes for {message.ballot} having promised {promised}")
        again = self._voted.get(key) == message.ballot
        self._voted[key] = max(message.ballot, self._voted.get(key, message.ballot))
        self._promised[key] = max(message.ballot, promised)
        value = record.values.get((message.parent_id, message.ballot))
        for removal in value.removed if value is not None and not again else ():
            out = removal.member_id
            if removal.cause in (Cause.PROOF, Cause.LEFT) or out == host.id or out in record.died:
                continue
            self._shunned.setdefault(key, set()).add(out)
            since = host.now - record.acked.get((host.id, out), NEVER)
            if since < self.world.config.exclude_after - SLACK:
                self.fail(f"{self._name(host)} votes {self.jury.story.name(out)} out {since:.3f} s after its last ack")
