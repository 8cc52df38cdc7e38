"""The checkers can fail: each rule of the protocol is broken on purpose, and random histories must show it.

``SEEDS`` of a bug says within how many histories a checker speaks. A bug that no history shows would mean that a checker is
missing, or that the rule is not needed.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from random import Random

import pytest

from consensus.messages import Accept, Install, Prepare, Promise, Promised
from consensus.protocol import attempt
from consensus.protocol.acceptor import NO_BALLOT, Acceptor
from consensus.protocol.attempt import Attempt, Phase
from consensus.protocol.evidence import EvidenceBook
from consensus.protocol.installation import Installation
from consensus.protocol.proposer import Proposer
from consensus.protocol.voter import Voter
from consensus.reports import Reports
from consensus.simulation import World
from consensus.view import Proposal, View

from .judgement import living

Patch = pytest.MonkeyPatch


def partitions(seed: int) -> World:
    """What the lease and the quorum are for: few members, links cut for about T_excl, then deaths."""
    rng = Random(seed)
    world = World(seed)
    world.cluster(rng.choice([3, 4, 5]))
    world.run(0.6)
    for _ in range(2):
        hosts = living(world)
        for host in hosts:
            for other in hosts:
                if host.id < other.id and rng.random() < 0.5:
                    world.faults.cut_both(host.id, other.id)
        world.run(rng.uniform(1.7, 3.5))
        for victim in rng.sample(hosts, rng.randrange(len(hosts))):
            world.kill(victim)
        world.faults.heal()
        world.run(rng.uniform(0.0, 1.0))
    world.run(2.0)
    return world


def duels(seed: int) -> World:
    """What ballots are for: messages late by seconds, and coordinators that die or sleep in the middle of a change."""
    rng = Random(seed)
    world = World(seed)
    world.cluster(rng.choice([4, 5, 6]))
    world.run(0.6)
    world.faults.reordering, world.faults.late, world.faults.loss = 0.4, 1.5, 0.1
    for _ in range(4):
        hosts = living(world)
        if len(hosts) > 2:
            world.kill(rng.choice(hosts[1:]))
        sleepers = rng.sample(living(world), 1)
        world.run(rng.uniform(0.004, 0.015))
        for host in sleepers:
            world.pause(host)
        world.run(rng.choice([0.3, 1.3, 2.3]))
        for host in sleepers:
            world.resume(host)
        world.run(0.3)
    return world


def no_promise_check(patch: Patch) -> None:
    """A voter forgets what it promised."""
    honest = Voter.on_accept

    def on_accept(self: Voter, sender: str, address: tuple[str, int], message: Accept, now: float) -> None:
        if self._acceptor is not None:
            self._acceptor.promised = NO_BALLOT
        honest(self, sender, address, message, now)

    patch.setattr(Voter, "on_accept", on_accept)


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
        self.phase = Phase.ACCEPT

    patch.setattr(Attempt, "propose", propose)


def majority_of_the_living(patch: Patch) -> None:
    """The dead are dropped from the denominator."""

    def is_quorum(view: View, responders: AbstractSet[str], discounted: AbstractSet[str]) -> bool:
        kept = [key for key in view.ids if key not in discounted]
        return 2 * sum(1 for key in kept if key in responders) > len(kept)

    patch.setattr(attempt, "is_quorum", is_quorum)


def any_half(patch: Patch) -> None:
    """Half of the members decide, whichever half."""
    patch.setattr(attempt, "is_quorum", lambda view, responders, _: 2 * len(responders & set(view.ids)) >= len(view))


def reports_of_a_quorum(patch: Patch) -> None:
    """INSTALL does not wait for every continuing member's report."""

    def message(self: Installation, *, whole: bool) -> Install:
        reports = Reports.of([self.reports.get(key, b"") for key in self.continuing])
        return Install(self.view, None, self.ballot, reports) if whole else Install(None, self.delta, self.ballot, reports)

    patch.setattr(Installation, "complete", property(lambda _: True))
    patch.setattr(Installation, "message", message)


def no_lease(patch: Patch) -> None:
    """A voter excludes whom it acked a moment ago."""
    patch.setattr(Acceptor, "_needs_lease", lambda *_: False)


def acks_the_excluded(patch: Patch) -> None:
    """A voter goes on acking whom it voted out."""
    honest = Acceptor.wait_for

    def wait_for(self: Acceptor, *args: object) -> float:
        until = honest(self, *args)  # type: ignore[arg-type]
        self.shunned.clear()
        return until

    patch.setattr(Acceptor, "wait_for", wait_for)


def discounts_without_contact(patch: Patch) -> None:
    """Whoever is dead is discounted, whenever it was last in touch."""
    patch.setattr(EvidenceBook, "discounted", property(lambda book: frozenset(book.proofs)))


def round_zero_for_all(patch: Patch) -> None:
    """Anybody skips PREPARE."""

    def begin(self: Proposer, now: float) -> None:
        view = self._core.view
        assert view is not None
        self._round = 0 if self._round < 0 else max(self._round, self._voter.promised[0]) + 1
        chosen = self.attempt = Attempt(view, (self._round, self._core.member.id), self._boundary, now)
        if self._round == 0:
            chosen.propose(self._proposal(view, now))
        self._send(chosen, now)

    patch.setattr(Proposer, "_begin", begin)
    patch.setattr(Acceptor, "legitimate", lambda self, sender, ballot: sender in self.view and ballot[1] == sender)


BUGS: list[tuple[Callable[[Patch], None], Callable[[int], World], int]] = [
    (no_promise_check, duels, 30),
    (silent_promise, duels, 30),
    (own_value, duels, 60),
    (majority_of_the_living, partitions, 40),
    (any_half, duels, 10),
    (reports_of_a_quorum, duels, 10),
    (no_lease, partitions, 20),
    (acks_the_excluded, partitions, 90),
    (discounts_without_contact, partitions, 20),
    (round_zero_for_all, duels, 10),
]


def first_violation(tell: Callable[[int], World], seeds: int) -> tuple[int, str] | None:
    for seed in range(seeds):
        try:
            tell(seed)
        except AssertionError as error:
            return seed, str(error)
    return None


@pytest.mark.parametrize(("bug", "tell", "seeds"), BUGS, ids=[bug.__name__ for bug, _, _ in BUGS])
def test_a_planted_bug_is_found(
    bug: Callable[[Patch], None], tell: Callable[[int], World], seeds: int, monkeypatch: Patch
) -> None:
    bug(monkeypatch)
    found = first_violation(tell, seeds)
    assert found is not None, f"{bug.__doc__} Nobody noticed within {seeds} histories."


def test_the_same_histories_are_clean_without_bugs() -> None:
    assert first_violation(partitions, 20) is None
    assert first_violation(duels, 20) is None
