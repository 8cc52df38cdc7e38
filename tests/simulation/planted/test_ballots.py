"""Planted bugs in voting: promises, ballots, and what a quorum is."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest

from consensus.messages import Accept, Accepted, Prepare, Promise, Promised
from consensus.protocol.agreement import attempt
from consensus.protocol.agreement.acceptor import NO_BALLOT, Acceptor
from consensus.protocol.agreement.attempt import Attempt, Outcome
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.agreement.voter import Voter
from consensus.simulation.invariants import Activation, Ballots, Choice, Uniqueness
from consensus.view import Proposal, View
from tests.harness.basics import around

from .bug import Bug, Patch
from .contests import halves, hurries, quarrels, repeats, rivals
from .losses import partitions


def no_promise_check(patch: Patch) -> None:
    """A voter forgets what it promised when it is asked to accept."""

    @around(patch, Voter, "on_accept")
    def on_accept(honest: Any, self: Voter, sender: str, address: tuple[str, int], message: Accept, now: float) -> None:
        if self._acceptor is not None:
            self._acceptor.promised = NO_BALLOT
        honest(self, sender, address, message, now)


def promises_downwards(patch: Patch) -> None:
    """A voter promises a ballot though it has promised a higher one."""

    def prepare(self: Acceptor, request: Prepare) -> Promise | Promised:
        self.promised = request.ballot
        return Promise(self.epoch, self.view.view_id, request.ballot, self.accepted_ballot, self.accepted)

    patch.setattr(Acceptor, "prepare", prepare)


def silent_promise(patch: Patch) -> None:
    """A voter promises without telling what it accepted."""

    def prepare(self: Acceptor, request: Prepare) -> Promise | Promised:
        if request.ballot < self.promised:
            return Promised(self.epoch, self.view.view_id, request.ballot, self.promised)
        self.promised = request.ballot
        return Promise(self.epoch, self.view.view_id, request.ballot)

    patch.setattr(Acceptor, "prepare", prepare)


def own_value(patch: Patch) -> None:
    """A proposer ignores what may already be chosen."""

    def propose(self: Attempt, proposal: Proposal) -> None:
        self.proposal = proposal
        self.advance(Outcome.PROMISED)

    patch.setattr(Attempt, "propose", propose)


def round_zero_for_all(patch: Patch) -> None:
    """Anybody skips PREPARE."""

    @around(patch, Proposer, "_begin")
    def begin(honest: Any, self: Proposer, now: float) -> None:
        view = self._core.view
        assert view is not None
        if self._round >= 0 or view.members[0].id == self._core.member.id:
            honest(self, now)
            return
        self._round = 0
        chosen = self.attempt = Attempt(view, (0, self._core.member.id), self._after_call, now)
        self._core.history.proposed(chosen.ballot, now)
        chosen.propose(self._proposal(view, now))
        self._send(chosen, now)

    patch.setattr(Acceptor, "legitimate", lambda self, sender, ballot: sender in self.view and ballot[1] == sender)


def old_answers_count(patch: Patch) -> None:
    """Votes and promises for a ballot that was given up count for the next one (a stale ballot is accepted)."""

    @around(patch, Proposer, "_matching")
    def matching(honest: Any, self: Proposer, message: Promise | Promised | Accepted) -> Attempt | None:
        now = self.attempt
        if now is not None and not isinstance(message, Promised) and message.ballot < now.ballot:
            message = replace(message, ballot=now.ballot)
        return honest(self, message)


def no_parent_id(patch: Patch) -> None:
    """A vote counts by its ballot alone, whichever view it is about: rounds begin anew in each epoch."""

    def matching(self: Proposer, message: Promise | Promised | Accepted) -> Attempt | None:
        return self.attempt if self.attempt is not None and message.ballot == self.attempt.ballot else None

    patch.setattr(Proposer, "_matching", matching)


def votes_twice(patch: Patch) -> None:
    """A vote that arrives twice counts twice."""
    again: dict[int, int] = {}
    honest, decided = Proposer.on_accepted, Attempt.decided

    def on_accepted(self: Proposer, sender: str, message: Accepted, now: float) -> None:
        current = self._matching(message)
        if current is not None and sender in current.reports:
            again[id(current)] = again.get(id(current), 0) + 1
        honest(self, sender, message, now)

    def counted(self: Attempt, discounted: frozenset[str]) -> bool:
        votes = len(self.responders) + again.get(id(self), 0)
        return 2 * votes > len(self.parent) or decided(self, discounted)

    patch.setattr(Proposer, "on_accepted", on_accepted)
    patch.setattr(Attempt, "decided", counted)


def majority_of_the_living(patch: Patch) -> None:
    """The dead are dropped from the denominator."""

    def is_quorum(view: View, responders: AbstractSet[str], discounted: AbstractSet[str]) -> bool:
        kept = [key for key in view.ids if key not in discounted]
        return 2 * sum(1 for key in kept if key in responders) > len(kept)

    patch.setattr(attempt, "is_quorum", is_quorum)


def any_half(patch: Patch) -> None:
    """Half of the members decide, whichever half."""
    patch.setattr(attempt, "is_quorum", lambda view, responders, _: 2 * len(responders & set(view.ids)) >= len(view))


BUGS = [
    Bug(no_promise_check, quarrels, 10, Ballots, "votes for .* having promised"),
    Bug(promises_downwards, quarrels, 20, Ballots, "promises .* too late"),
    Bug(silent_promise, rivals, 10, Ballots, "without telling its vote"),
    Bug(own_value, quarrels, 40, Ballots, "proposes anew"),
    Bug(round_zero_for_all, rivals, 10, Ballots, "takes round 0"),
    Bug(old_answers_count, repeats, 150, Activation, "without quorum", known=110),
    Bug(no_parent_id, hurries, 10, Activation, "without quorum"),
    Bug(votes_twice, halves, 40, Activation, "without quorum"),
    Bug(majority_of_the_living, partitions, 100, Activation, "without quorum", known=7),
    Bug(any_half, halves, 40, Activation, "without quorum"),
    Bug(any_half, halves, 60, Choice, "both can activate", alone=True, known=1),
    Bug(any_half, halves, 60, Uniqueness, "two active views of epoch", alone=True, known=1),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_in_voting_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.expect(monkeypatch)
