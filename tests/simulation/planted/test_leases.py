"""Planted bugs in leases and evidence: who may be voted out, and who may be discounted."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from consensus.messages import Accept, Ack, Evidence, EvidenceKind
from consensus.protocol.agreement.acceptor import Acceptor
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.detection.accusations import Accusations
from consensus.protocol.detection.detection import Detection
from consensus.protocol.detection.probe import Prober
from consensus.protocol.detection.verdict import Verdicts
from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.member_table import Peer
from consensus.simulation.invariants import Activation, Ballots, Choice, Exclusion, Replays, Succession
from consensus.view import Cause, View
from tests.harness.basics import around

from .bug import Bug, Patch
from .losses import alarms, bridges, deaf, delays, farewells, ghosts, gossips, mutes, naps, partitions, stale_votes, upstarts
from .test_members import more_joiners_than_members


def no_lease(patch: Patch) -> None:
    """A voter excludes whom it acked a moment ago."""
    patch.setattr(Acceptor, "_needs_lease", lambda *_: False)


def acks_the_excluded(patch: Patch) -> None:
    """A voter goes on acking whom it voted out."""

    @around(patch, Acceptor, "accept")
    def accept(honest: Any, self: Acceptor, request: Accept) -> None:
        honest(self, request)
        self.shunned.clear()


def discounts_without_contact(patch: Patch) -> None:
    """Whoever is dead is discounted, whenever it was last in touch."""
    patch.setattr(EvidenceBook, "discounted", property(lambda book: frozenset(book.proofs)))


def contact_at_receipt(patch: Patch) -> None:
    """Contact is when an ack came, not when its ping was sent."""

    @around(patch, Detection, "on_ack")
    def on_ack(honest: Any, self: Detection, sender: str, ack: Ack, now: float) -> None:
        probe = self._prober.probes.get(ack.seq)
        if probe is not None:
            probe.sent = now
        honest(self, sender, ack, now)


def relayed_acks_are_contact(patch: Patch) -> None:
    """An ack that a helper passed on counts as contact with us."""

    @around(patch, Detection, "on_ack")
    def on_ack(honest: Any, self: Detection, sender: str, ack: Ack, now: float) -> None:
        probe = self._prober.probes.get(ack.seq)
        if probe is not None and probe.target.id == ack.target:
            self._core.table.answered(ack.target, probe.sent)
        honest(self, sender, ack, now)


def newer_views_ack(patch: Patch) -> None:
    """An ack from a newer view, which may be without us, is contact."""

    @around(patch, Detection, "on_ack")
    def on_ack(honest: Any, self: Detection, sender: str, ack: Ack, now: float) -> None:
        honest(self, sender, replace(ack, epoch=self._core.epoch, view_id=self._core.view_id), now)


def pings_from_one(patch: Patch) -> None:
    """Every lifetime numbers its pings from 1: acks for an earlier one at its address fit."""

    def next_seq(self: Prober) -> int:
        self._seq = max(self._seq, 0) + 1
        return self._seq

    patch.setattr(Prober, "next_seq", next_seq)


def leavers_discount(patch: Patch) -> None:
    """Who leaves, and is voted out without a lease, discounts the dead like others."""
    patch.setattr(Proposer, "discounted", property(lambda proposer: proposer._core.evidence.discounted))


def old_votes_help(patch: Patch) -> None:
    """A dead newcomer is discounted with votes from before its death."""
    patch.setattr(EvidenceBook, "late", lambda *_: frozenset())


def newcomers_outvote(patch: Patch) -> None:
    """Newcomers are discounted though they are more than half (and as many are let in, which rule 2 forbids)."""
    more_joiners_than_members(patch)

    @around(patch, EvidenceBook, "adopt")
    def adopt(honest: Any, self: EvidenceBook, view: View, parent: View | None) -> None:
        honest(self, view, parent)
        if parent is not None and parent.view_id == view.parent_id:
            self._newcomers = frozenset(view.ids).difference(parent.ids)


def silence_is_proof(patch: Patch) -> None:
    """Who was silent for long enough is proposed as proven dead: no lease is asked for."""

    @around(patch, EvidenceBook, "cause")
    def cause(honest: Any, self: EvidenceBook, member_id: str) -> Cause | None:
        found = honest(self, member_id)
        return Cause.PROOF if found is Cause.SILENCE else found


def hints_are_proof(patch: Patch) -> None:
    """Whom the data plane blames is taken for dead, unchecked."""

    def hint(self: Accusations, suspects: tuple[str, ...], now: float) -> None:
        for member_id in suspects:
            self.accuse(member_id, EvidenceKind.PROOF, "blamed", now)

    patch.setattr(Accusations, "hint", hint)


def no_answer_is_proof(patch: Patch) -> None:
    """A check that finds nothing is taken for a refused connection."""

    @around(patch, Accusations, "checked")
    def checked(honest: Any, self: Accusations, member_id: str, alive: bool | None, detail: str, now: float) -> None:
        honest(self, member_id, bool(alive), detail, now)


def convicts_early(patch: Patch) -> None:
    """A suspicion with many accusers convicts before T_excl is over."""

    @around(patch, Verdicts, "time")
    def verdict_time(honest: Any, self: Verdicts, peer: Peer) -> float:
        time = honest(self, peer)
        return time if peer.suspicion is None or time == inf else min(time, peer.suspicion.deadline)


def believes_anybody(patch: Patch) -> None:
    """Silence told by others counts though we have heard the accused since."""
    patch.setattr(Detection, "believes", lambda self, accused, *_: self._core.table.get(accused) is not None)


def silence_sticks(patch: Patch) -> None:
    """Silence that others told of is not taken back when the accused answers us, unless we suspected it ourselves."""

    @around(patch, Detection, "_clear")
    def clear(honest: Any, self: Detection, peer: Peer) -> None:
        if peer.suspicion is not None:
            honest(self, peer)


def old_evidence(patch: Patch) -> None:
    """Evidence about another view counts in this one."""

    @around(patch, Accusations, "on_evidence")
    def on_evidence(honest: Any, self: Accusations, sender: str, message: Evidence, now: float) -> None:
        honest(self, sender, replace(message, view_id=self._core.view_id), now)


BUGS = [
    Bug(no_lease, mutes, 10, Ballots, "votes .* out .* after its last ack"),
    Bug(acks_the_excluded, mutes, 40, Ballots, "acks .* whom it voted out", known=5),
    Bug(discounts_without_contact, partitions, 20, Activation, "without quorum"),
    Bug(discounts_without_contact, partitions, 100, Choice, "activate", alone=True, known=12),
    Bug(contact_at_receipt, delays, 100, Activation, "without quorum"),
    Bug(relayed_acks_are_contact, bridges, 60, Activation, "without quorum"),
    Bug(newer_views_ack, deaf, 10, Activation, "without quorum"),
    Bug(newer_views_ack, deaf, 10, Choice, "activate", alone=True),
    Bug(pings_from_one, ghosts, 20, Ballots, "votes .* out .* after its last ack", known=1),
    Bug(leavers_discount, farewells, 10, Succession, "is no ancestor"),
    Bug(old_votes_help, stale_votes, 1, Choice, "activate"),
    Bug(newcomers_outvote, upstarts, 10, Activation, "more newcomers than members that stay"),
    Bug(newcomers_outvote, upstarts, 10, Choice, "activate", alone=True),
    Bug(silence_is_proof, partitions, 40, Exclusion, "for proof, .* it lived", known=5),
    Bug(hints_are_proof, alarms, 10, Exclusion, "for proof, .* it lived"),
    Bug(no_answer_is_proof, alarms, 10, Exclusion, "for proof, .* it lived"),
    Bug(convicts_early, alarms, 100, Exclusion, "its ack had reached the proposer", known=6),
    Bug(believes_anybody, naps, 60, Exclusion, "its ack had reached the proposer", known=7),
    Bug(silence_sticks, partitions, 120, Exclusion, "its ack had reached the proposer", known=27),
    Bug(old_evidence, gossips, 100, Replays, "Evidence.* from an earlier view change", known=8),
]


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_bug_in_leases_or_evidence_is_found(bug: Bug, monkeypatch: Patch) -> None:
    bug.expect(monkeypatch)
