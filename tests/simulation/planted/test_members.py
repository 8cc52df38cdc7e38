"""Planted bugs in what members believe of each other, in lifetimes, in joins, and in what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from consensus.member import Member
from consensus.messages import Status, Update
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.detection.detection import Detection
from consensus.protocol.state.dissemination import Dissemination
from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.join import Applicants
from consensus.protocol.state.member_table import MemberTable
from consensus.simulation.invariants import Bounds, Lifetimes, Trust
from consensus.view import Proposal, View
from tests.harness.basics import around

from .bug import Bug, Patch
from .losses import alarms, crowds, crumbling, gossips, visits, widows


def more_joiners_than_members(patch: Patch) -> None:
    """A view admits everybody who asks, however few it keeps."""

    @around(patch, Proposer, "_proposal")
    def proposal(honest: Any, self: Proposer, parent: View, now: float) -> Proposal:
        joined = [member for member in self._core.applicants.admissible(now) if member.id not in parent]
        return replace(honest(self, parent, now), joined=tuple(joined))


def judges_again(patch: Patch) -> None:
    """Whether a dead member is discounted is not judged once, but whenever it is asked: contact gets too old."""

    @around(patch, Proposer, "_count")
    def count(honest: Any, self: Proposer, attempt: object, now: float) -> None:
        book = self._core.evidence
        for key, proof in book.proofs.items():
            peer = self._core.table.get(key)
            if peer is not None:
                limit = self._core.config.exclude_after * (1 - self._core.config.drift)
                book.proofs[key] = replace(proof, discounted=now - peer.contact < limit)
        honest(self, attempt, now)  # type: ignore[arg-type]


def discounts_nobody(patch: Patch) -> None:
    """Rule (b) is missing: the last of many may not go on."""
    patch.setattr(EvidenceBook, "discounted", property(lambda _: frozenset()))


def admits_who_does_not_answer(patch: Patch) -> None:
    """Joiners are admitted for asking, whether they ack or not."""

    def admissible(self: Applicants, now: float) -> list[Member]:
        return [applicant.member for applicant in self.fresh(now, wanting=True)]

    patch.setattr(Applicants, "admissible", admissible)


def refutations_are_ignored(patch: Patch) -> None:
    """A higher incarnation does not end a suspicion."""

    @around(patch, MemberTable, "apply")
    def apply(honest: Any, self: MemberTable, update: Update) -> bool:
        return update.status is not Status.ALIVE and honest(self, update)


def answers_do_not_help(patch: Patch) -> None:
    """Who was suspected once stays so, though it answers."""
    patch.setattr(Detection, "_clear", lambda *_: None)


def old_incarnations_count(patch: Patch) -> None:
    """A rumour about an incarnation that was refuted makes suspect again."""
    honest = Detection.merge

    def renewed(self: Detection, update: Update) -> Update:
        peer = self._core.table.get(update.member_id)
        if peer is None or update.status is not Status.SUSPECT:
            return update
        return replace(update, incarnation=max(peer.incarnation, update.incarnation))

    def merge(self: Detection, updates: tuple[Update, ...], now: float, *, direct: bool = False) -> None:
        honest(self, tuple(renewed(self, update) for update in updates), now, direct=direct)

    patch.setattr(Detection, "merge", merge)


def speaks_for_others(patch: Patch) -> None:
    """Whoever suspects a member raises its incarnation, which is that member's alone."""

    @around(patch, Dissemination, "add")
    def add(honest: Any, self: Dissemination, update: Update) -> None:
        raised = update.incarnation + (update.status is Status.SUSPECT)
        honest(self, replace(update, incarnation=raised))


def rumours_for_ever(patch: Patch) -> None:
    """Rumours are told without end, and kept when the member they are about is gone."""

    @around(patch, Dissemination, "__init__")
    def init(honest: Any, self: Dissemination, retransmit_mult: int) -> None:
        honest(self, 1000 * retransmit_mult)

    patch.setattr(Dissemination, "forget", lambda *_: None)


BUGS = [
    Bug(more_joiners_than_members, crowds, 10, None, "not within 6.0 s"),
    Bug(judges_again, widows, 40, None, "not within 5.0 s", known=4),
    Bug(discounts_nobody, widows, 10, None, "not within 5.0 s"),
    Bug(admits_who_does_not_answer, visits, 20, Lifetimes, "admits", known=1),
    Bug(refutations_are_ignored, alarms, 60, Trust, "has just refuted that", known=3),
    Bug(answers_do_not_help, alarms, 20, Trust, "has just refuted that"),
    Bug(old_incarnations_count, gossips, 20, Lifetimes, "for a rumour about its old incarnation"),
    Bug(speaks_for_others, alarms, 10, Lifetimes, "says suspect of incarnation"),
    Bug(rumours_for_ever, crumbling, 40, Bounds, "rumours in a view", known=1),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_in_membership_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.expect(monkeypatch)
