"""The rules of voting as they show on the wire, checked apart from the code that is meant to keep them.

A broken rule forks only in rare histories; here the first vote, promise or ack that breaks it is a violation at once.
What a member sends to itself never reaches the wire, so a proposer is always counted as one of its own voters.
"""

from __future__ import annotations

from ..messages import Accept, Accepted, Ack, Ballot, Chosen, FlushRequest, Install, JoinReply, Message, Ping, Promise
from ..protocol.effects import Effect, Installed
from ..view import Cause, Proposal, View
from .host import Host
from .observer import Observer

__all__ = ["Ballots"]

SLACK = 1e-6
"""Seconds by which floating point may be off."""


class Ballots(Observer):
    """Ballots, promises, votes, leases and quorums of one simulated job."""

    def __init__(self) -> None:
        self._views: dict[str, View] = {}
        self._values: dict[tuple[str, Ballot], Proposal] = {}
        self._told: dict[tuple[str, Ballot], Ballot] = {}
        self._promised: dict[tuple[str, str], Ballot] = {}
        self._voted: dict[tuple[str, str], Ballot] = {}
        self._votes: dict[tuple[str, Ballot], set[str]] = {}
        self._acked: dict[tuple[str, str], float] = {}
        self._pinged: dict[tuple[str, int], float] = {}
        self._contact: dict[tuple[str, str], float] = {}
        self._shunned: set[tuple[str, str, str]] = set()
        self._died: dict[str, float] = {}
        self._installed: set[str] = set()
        self._drivers: dict[str, str] = {}

    def killed(self, host: Host) -> None:
        """See ``Observer``."""
        self._died[host.id] = self.world.now

    def effect(self, host: Host, effect: Effect) -> None:
        """See ``Observer``."""
        if isinstance(effect, Installed):
            self._install(host.id, effect.view)

    def sent(self, host: Host, target: Host | None, message: Message) -> None:
        """See ``Observer``."""
        if target is not None:
            self._say(host, target.id, message, host.now)

    def _say(self, host: Host, receiver: str, message: Message, now: float) -> None:
        """``now``: on the sender's clock, by which leases run."""
        sender = host.id
        match message:
            case Ping():
                self._pinged[sender, message.seq] = self.world.now
            case Ack() if message.target == sender:
                shunned = (sender, message.view_id, receiver) in self._shunned
                assert not shunned, f"{sender} acks {receiver}, whom it voted out"
                if (receiver, message.seq) in self._pinged:  # else it is for an earlier lifetime at that address
                    self._acked[sender, receiver] = now
            case Promise():
                self._promise(sender, message)
            case Accept():
                self._propose(sender, message)
            case Accepted():
                self._vote(sender, message, now)
            case Install() | FlushRequest() | Chosen():
                self._views[message.view.view_id] = message.view
                if isinstance(message, Install):
                    self._drivers.setdefault(message.view.view_id, sender)
            case JoinReply() if message.view is not None:
                self._views[message.view.view_id] = message.view

    def delivered(self, host: Host, sender: Host, message: Message) -> None:
        """See ``Observer``."""
        self._hear(host.id, sender.id, message)

    def _hear(self, receiver: str, sender: str, message: Message) -> None:
        if isinstance(message, Ack) and message.target == sender:
            at = self._pinged.get((receiver, message.seq))
            if at is not None:
                self._contact[receiver, sender] = max(at, self._contact.get((receiver, sender), at))
        elif isinstance(message, Promise) and message.ballot[1] == receiver and message.accepted_ballot is not None:
            key, told = (message.parent_id, message.ballot), message.accepted_ballot
            if key not in self._values:  # later ones came too late to bind the proposer
                self._told[key] = max(told, self._told.get(key, told))

    def _promise(self, voter: str, message: Promise) -> None:
        key = (voter, message.parent_id)
        assert message.ballot >= self._promised.get(key, message.ballot), f"{voter} promises {message.ballot} too late"
        self._promised[key] = message.ballot
        voted = self._voted.get(key)
        if voted is not None:
            told = message.accepted_ballot
            assert told is not None and told >= voted, f"{voter} promises without telling its vote for {voted}"

    def _propose(self, proposer: str, message: Accept) -> None:
        ballot = message.ballot
        assert ballot[1] == proposer, f"{proposer} uses {ballot}"
        self._keeps(message)
        known = self._values.setdefault((message.parent_id, ballot), message.proposal)
        assert known == message.proposal, f"two values under {ballot}: {known} and {message.proposal}"
        parent = self._views.get(message.parent_id)
        if ballot[0] == 0 and parent is not None:
            assert parent.members[0].id == proposer, f"{proposer} takes round 0 of {parent}"

    def _keeps(self, message: Accept) -> None:
        """The value must be the one told with the highest ballot, or one that the proposer accepted under a higher."""
        told = self._told.get((message.parent_id, message.ballot))
        if told is not None and (message.parent_id, message.ballot) not in self._values:
            seen = [
                value
                for (parent_id, ballot), value in self._values.items()
                if parent_id == message.parent_id and told <= ballot < message.ballot
            ]
            assert message.proposal in seen, f"{message.ballot} proposes anew though {told} was accepted"

    def _vote(self, voter: str, message: Accepted, now: float) -> None:
        key = (voter, message.parent_id)
        promised = self._promised.get(key, message.ballot)
        assert message.ballot >= promised, f"{voter} votes for {message.ballot} having promised {promised}"
        self._voted[key] = max(message.ballot, self._voted.get(key, message.ballot))
        self._promised[key] = max(message.ballot, promised)
        self._votes.setdefault((message.parent_id, message.ballot), set()).add(voter)
        value = self._values.get((message.parent_id, message.ballot))
        for removal in value.removed if value is not None else ():
            out = removal.member_id
            if removal.cause in (Cause.PROOF, Cause.LEFT) or out == voter or out in self._died:
                continue
            self._shunned.add((voter, message.parent_id, out))
            since = now - self._acked.get((voter, out), float("-inf"))
            assert since >= self.world.config.exclude_after - SLACK, f"{voter} votes {out} out {since:.3f} s after its last ack"

    def _install(self, member_id: str, view: View) -> None:
        """``view`` comes to life: a quorum of its parent must have voted for it."""
        self._views[view.view_id] = view
        parent = self._views.get(view.parent_id)
        if parent is None or view.view_id in self._installed:
            return
        self._installed.add(view.view_id)
        tries = [
            (ballot[1], self._votes.get((parent_id, ballot), set()) | {ballot[1]})
            for (parent_id, ballot), value in self._values.items()
            if parent_id == parent.view_id and value.apply(parent).view_id == view.view_id
        ]
        driver = self._drivers.get(view.view_id, member_id)  # it alone had to vote, and is not seen voting for itself
        tries = tries or [(driver, {driver})]
        assert any(self._is_quorum(parent, owner, votes) for owner, votes in tries), f"{view} without quorum: {tries}"

    def _is_quorum(self, parent: View, owner: str, votes: set[str]) -> bool:
        inside = [member.id for member in parent.members if member.id in votes]
        if 2 * len(inside) > len(parent) or (2 * len(inside) == len(parent) and parent.members[0].id in votes):
            return True
        new = self._newcomers(parent)
        silent = [key for key in parent.ids if key not in votes]
        return all(self._discountable(owner, key) or (key in new and key in self._died) for key in silent)

    def _newcomers(self, view: View) -> frozenset[str]:
        """Whom ``view`` admitted: never more than half of it, so that without the others they are no quorum."""
        before = self._views.get(view.parent_id)
        new = frozenset(view.ids).difference(before.ids) if before is not None else frozenset()
        assert 2 * len(new) <= len(view), f"{view} has more newcomers than members that stay"
        return new

    def _discountable(self, owner: str, member_id: str) -> bool:
        died, contact = self._died.get(member_id), self._contact.get((owner, member_id))
        limit = self.world.config.exclude_after * (1 - self.world.config.drift)
        rate = self.world.hosts[owner].clock.rate  # it measures with its own clock, and the proof comes after the death
        return died is not None and contact is not None and (died - contact) * rate < limit
