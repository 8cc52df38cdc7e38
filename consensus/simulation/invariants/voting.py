"""Invariant 4: of the values chosen for one epoch at most one can ever activate. And the rules of voting behind 3 and 4.

The rules are checked as they show on the wire, apart from the code meant to keep them. A broken rule forks only in rare
histories; here the first vote, promise or ack that breaks it is a violation at once.
"""

from __future__ import annotations

from typing import NamedTuple

from ...config import Policy
from ...messages import Accept, Accepted, Ack, Ballot, Prepare, Promise, Ready
from ...view import NO_VIEW_ID, Cause, View
from ..world.host import Host
from ..world.observer import Hears, Sees, Thinks
from .facts import Key
from .inside import cluster_of
from .invariant import SLACK, Facts, Invariant


class _Chosen(NamedTuple):
    view: View
    driver: str
    voters: frozenset[str]
    """Those whose votes its driver had counted."""


class Choice(Invariant):
    """Two values chosen for one epoch differ only where every common voter is dead, and only one of them can ever activate.

    A value is chosen when the owner of a ballot follows it. It can activate as long as every member of it said READY for it, or
    is alive and follows no other view of that epoch or a later one. Two values that share a member exclude each other, because
    a member says READY for one view an epoch (checked here, too); two that share none must not both be able to.

    ``Ballots`` checks the rules of voting that this follows from, vote by vote.
    """

    number = 4
    title = "at most one value of an epoch can activate"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._chosen: dict[tuple[str, int], list[_Chosen]] = {}
        self._met: set[str] = set()
        self._follows: dict[str, View] = {}
        self._ready: dict[tuple[str, int], str] = {}

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {Ready: lambda host, _, message: self._say_ready(host, message)}

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {Ready: self._say_ready}

    def _say_ready(self, host: Host, message: Ready) -> None:
        first = self._ready.setdefault((host.id, message.epoch), message.view_id)
        if first != message.view_id:
            views, log = self.record.views, self.log
            shown = [log.show(views.get(key)) for key in (first, message.view_id)]
            self.fail(f"{log.name(host.id)} says READY for {shown[1]} after {shown[0]} of the same epoch")

    def adopted(self, host: Host, view: View) -> None:
        """See ``Observer``."""
        self._follows[host.id] = view
        if view.view_id in self._met:
            return
        self._met.add(view.view_id)
        if self.world.config.policy is not Policy.MAJORITY:
            return  # both may live on, or the store has one: see ``Records``
        chosen = _Chosen(view, host.id, self._voters(host, view))
        others = self._chosen.setdefault((cluster_of(view), view.epoch), [])
        for other in others:
            self._compare(other, chosen)
        others.append(chosen)

    def _voters(self, host: Host, view: View) -> frozenset[str]:
        record = self.record
        parent = record.parent(view)
        if parent is None or view.parent_id == NO_VIEW_ID:
            return frozenset()
        found: set[str] = set()
        for ballot in record.ballots.get(parent.view_id, ()):
            if ballot[1] == host.id and record.values[parent.view_id, ballot].apply(parent).view_id == view.view_id:
                found |= record.counted.get((parent.view_id, ballot), set())
        return frozenset(found)

    def _compare(self, one: _Chosen, two: _Chosen) -> None:
        log, died = self.log, self.record.died
        both = f"{log.name(one.driver)} chose {log.show(one.view)}, {log.name(two.driver)} chose {log.show(two.view)}"
        living = [key for key in sorted(one.voters & two.voters) if key not in died]
        if living:
            self.fail(f"{both}, and {log.names(living)}, who voted for both, live")
        if not set(one.view.ids) & set(two.view.ids) and self._possible(one.view) and self._possible(two.view):
            self.fail(f"{both}, and both can activate")

    def _possible(self, view: View) -> bool:
        return all(self._may_be_ready(key, view) for key in view.ids)

    def _may_be_ready(self, member_id: str, view: View) -> bool:
        if self._ready.get((member_id, view.epoch)) == view.view_id:
            return True
        host, follows = self.world.hosts.get(member_id), self._follows.get(member_id)
        if host is None or not host.alive or host.stopped is not None:
            return False
        return follows is None or follows.epoch < view.epoch or follows.view_id == view.view_id


class Ballots(Invariant):
    """Paxos, and the other side of the lease.

    A ballot is its owner's, round 0 the parent's most senior member's; one value a ballot; no promise or vote below a promise;
    a promise tells the highest vote; a proposer keeps the highest value that it was told. Nobody votes out without proof (or
    the leaver's request) whom it acked less than T_excl ago, and whoever it so voted out it never acks again in that epoch.
    """

    number = 4
    title = "the rules of voting"

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self._told: dict[Key, Ballot] = {}
        self._promised: dict[tuple[str, str], Ballot] = {}
        self._voted: dict[tuple[str, str], Ballot] = {}
        self._timely: dict[tuple[str, str], set[Ballot]] = {}
        """Ballots whose ACCEPT came before a promise forbade it: voted for, though that is said only with the flush report."""
        self._shunned: dict[tuple[str, str], set[str]] = {}

    def sees(self) -> Sees:
        """See ``Observer``."""
        return {
            Ack: self._ack,
            Prepare: lambda host, _, message: self._own(host, message),
            Promise: lambda host, _, message: self._promise(host, message),
            Accept: lambda host, _, message: self._propose(host, message),
            Accepted: lambda host, _, message: self._vote(host, message),
        }

    def hears(self) -> Hears:
        """See ``Observer``."""
        return {Promise: self._hear, Accept: lambda host, _, message: self._come(host, message)}

    def thinks(self) -> Thinks:
        """See ``Observer``."""
        return {
            Prepare: self._own,
            Promise: self._promise_itself,
            Accept: self._propose_itself,
            Accepted: self._vote,
        }

    def _name(self, host: Host) -> str:
        return self.log.name(host.id)

    def _ack(self, host: Host, target: Host | None, message: Ack) -> None:
        if target is not None and self._shunned and message.target == host.id:
            shunned = self._shunned.get((host.id, message.view_id))
            if shunned is not None and target.id in shunned and self.record.pinged(target.id, message.seq):
                self.fail(f"{self._name(host)} acks {self._name(target)}, whom it voted out")

    def _own(self, host: Host, message: Prepare | Accept) -> None:
        if message.ballot[1] != host.id:
            self.fail(f"{self._name(host)} uses the ballot {message.ballot} of {self.log.name(message.ballot[1])}")

    def _hear(self, host: Host, sender: Host, message: Promise) -> None:  # noqa: ARG002
        if message.ballot[1] == host.id and message.accepted_ballot is not None:
            key, told = (message.parent_id, message.ballot), message.accepted_ballot
            if key not in self.record.values:  # later ones came too late to bind the proposer
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
        ballot, record = message.ballot, self.record
        self._own(host, message)
        self._keeps(host, message)
        known = record.values[message.parent_id, ballot]
        if known != message.proposal:
            self.fail(f"{self._name(host)} proposes two values under {ballot}: {known} and {message.proposal}")
        parent = record.views.get(message.parent_id)
        if ballot[0] == 0 and parent is not None and parent.members[0].id != host.id:
            self.fail(f"{self._name(host)} takes round 0 of {self.log.show(parent)}")

    def _keeps(self, host: Host, message: Accept) -> None:
        """The value must be the one told with the highest ballot, or one that the proposer accepted under a higher."""
        record = self.record
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
        record = self.record
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
            if removal.cause in (Cause.PROOF, Cause.LEFT, Cause.COHORT) or out == host.id or out in record.died:
                continue
            self._shunned.setdefault(key, set()).add(out)
            since = host.now - record.last_ack(host.id, out, message.epoch)
            if since < self.world.config.exclude_after - SLACK:
                self.fail(f"{self._name(host)} votes {self.log.name(out)} out {since:.3f} s after its last ack")
