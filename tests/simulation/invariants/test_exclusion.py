from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from consensus.messages import Ack, Ping
from consensus.protocol.agreement.installer import Installer
from consensus.protocol.detection.verdict import Verdicts
from consensus.protocol.state.evidence import EvidenceBook
from consensus.protocol.state.links import Links
from consensus.protocol.state.member_table import Peer
from consensus.simulation import Result, Scenario, play
from consensus.simulation.invariants import Exclusion, Violation
from consensus.simulation.script.scenario import POLICIES
from consensus.view import Cause

from .stage import Stage


@pytest.mark.parametrize(
    ("cause", "why"),
    [(Cause.PROOF, "it lived"), (Cause.LEFT, "it never asked to leave"), (Cause.SILENCE, "its ack had reached the proposer")],
)
def test_evidence_that_is_not_true(cause: Cause, why: str) -> None:
    stage = Stage(Exclusion)
    stage.world.run(1.0)
    a, b, c = stage.hosts
    with pytest.raises(Violation, match=rf"m.* is excluded from view 1 .* for {cause.value}, proposed by m.*, but {why}"):
        stage.choose(a, stage.value(stage.view, c, cause=cause), [a, b])


def test_unready_within_moments() -> None:
    stage = Stage(Exclusion)
    a, b, c = stage.hosts
    with pytest.raises(Violation, match=r"unready.* that view had been chosen"):
        stage.choose(a, stage.value(stage.view, c, cause=Cause.UNREADY), [a, b])


def test_who_is_well_is_not_excluded_for_anybodys_silence() -> None:
    """Beyond ``mesh_limit``, where silence is believed though others told it."""
    stage = Stage(Exclusion, 40)
    stage.world.run(6.0)
    a, *_, out = stage.hosts
    with pytest.raises(Violation, match=r"silence.*both had been well for 6\.\d+ s"):
        stage.choose(a, stage.value(stage.view, out), stage.hosts[:30])


def test_a_link_said_to_be_broken_that_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: two members take no note of each other's answers."""
    stage = Stage(Exclusion, 4)
    stage.world.run(12.0)
    pair = {stage.hosts[1].id, stage.hosts[2].id}
    monkeypatch.setattr(Links, "answered", lambda *_: None)
    monkeypatch.setattr(Links, "silent_for", lambda links, other, _now: 9.0 * ({links._own_id, other} == pair))
    with pytest.raises(Violation, match=r"severed, proposed by .* but both had been well"):
        stage.world.run(60.0)


def test_a_broken_link_is_fine_evidence() -> None:
    stage = Stage(Exclusion, 4)
    a, b, c, _ = stage.hosts
    stage.world.faults.cut_both(b.id, c.id)
    stage.world.run(20.0)
    assert len(a.activated[-1]) == 3


def test_true_evidence_is_fine() -> None:
    stage = Stage(Exclusion, 4)
    a, _, c, d = stage.hosts
    stage.world.run(1.0)
    stage.world.kill(d)
    stage.world.run(2.0)
    assert len(a.activated[-1]) == 3
    stage.world.pause(c)
    stage.world.run(5.0)
    assert len(a.activated[-1]) == 2


def test_an_impatient_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: silence is held against a member a quarter of T_excl after its last sign."""
    monkeypatch.setattr(Verdicts, "expire", impatient)
    stage = Stage(Exclusion)
    stage.world.pause(stage.hosts[2])
    with pytest.raises(Violation, match="its ack had reached the proposer"):
        stage.world.run(5.0)


def impatient(self: Verdicts, peer: object, suspects: int, now: float) -> None:
    if now >= peer.last_sign + 0.5 and peer.member.id not in self._core.evidence.silent:  # type: ignore[attr-defined]
        self._core.evidence.silent[peer.member.id] = now  # type: ignore[attr-defined]


def test_silence_that_is_never_retracted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: who answered in time goes on being held silent, until some later crash brings a proposal."""
    monkeypatch.setattr(EvidenceBook, "retract_silence", lambda *_: None)
    monkeypatch.setattr(EvidenceBook, "due", lambda book, **_: min((p.time for p in book.proofs.values()), default=None))
    stage = Stage(Exclusion, 5)
    stage.world.pause(stage.hosts[4])
    stage.world.run(2.4)
    stage.world.resume(stage.hosts[4])
    stage.world.run(6.0)
    stage.world.kill(stage.hosts[3])
    with pytest.raises(Violation, match="silence, proposed by"):
        stage.world.run(5.0)


def test_a_driver_that_blames_who_was_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: READY is not counted."""
    monkeypatch.setattr(Installer, "on_ready", lambda *_: None)
    with pytest.raises(Violation, match=r"unready, proposed by .* but both had been well"):
        Stage(Exclusion)


ACKED_LATE = """
seed=1 size=5 early=1 rest=0
0.01 pause m4
1.01 resume m4
1.01 pause m4
{} kill m3
3.5 heal
"""
"""m4 is stopped but for a moment. In that it acks the first ping of everybody in the view, and the repeat sent 0.15 s later. m3
dies when m4's silence becomes evidence, so that nobody waits a while for more."""


@pytest.mark.parametrize("policy", POLICIES)
def test_silence_counts_from_the_first_of_two_pings_with_one_ack(policy: str) -> None:
    result = played(2.646, policy)
    assert result.good, str(result)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_impatient_detector_is_caught_though_the_ping_was_repeated(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: silence is held against a member 0.2 s too early."""

    def early(self: Verdicts, peer: Peer) -> float:
        known = peer.suspicion is None or peer.member.id in self._core.evidence.silent
        return inf if known else peer.last_sign + 1.8

    monkeypatch.setattr(Verdicts, "time", early)
    result = played(2.446, policy)
    assert "its ack had reached the proposer 1.8" in str(result.violation)


def played(killed: float, policy: str) -> Result:
    return play(replace(Scenario.parse(ACKED_LATE.format(killed)), policy=policy))


def test_contact_is_when_the_first_of_two_pings_was_sent() -> None:
    stage = Stage(Exclusion)
    a, b, _ = stage.hosts
    stage.world.pause(b)
    stage.world.run(1.0)
    first, ping = stage.world.now, Ping(7, b.id, stage.view.epoch, stage.view.view_id)
    stage.observers.sent(a, b, ping)
    stage.world.run(0.15)
    stage.observers.sent(a, b, ping)
    stage.observers.delivered(a, b, Ack(7, b.id, stage.view.epoch, stage.view.view_id))
    assert stage.checkers.facts.record.contact[a.id, b.id] == first
