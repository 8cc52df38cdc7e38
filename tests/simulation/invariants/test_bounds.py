from __future__ import annotations

from typing import Any

import pytest

from consensus.messages import Accept, Envelope, Gossip, Ping, Status, Update
from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.detection.detection import PIGGYBACK
from consensus.protocol.detection.probe import Probe, Prober
from consensus.protocol.state.dissemination import Dissemination
from consensus.simulation.invariants import Bounds, Violation
from consensus.simulation.invariants.bounds import PER_CHANGE, PROGRESS, TABLES
from consensus.simulation.invariants.inside import sizes
from consensus.view import Proposal
from consensus.wire.codec import Codec
from tests.harness.basics import around

from .stage import Stage, alone


def test_a_table_that_is_never_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: failed probes are kept."""

    @around(monkeypatch, Prober, "overdue")
    def overdue(honest: Any, self: Prober, now: float) -> tuple[list[Probe], list[Probe]]:
        indirect, failed = honest(self, now)
        for probe in failed:
            probe.fail_at = probe.ask_others_at = float("inf")
            self.probes[probe.seq] = probe
        return indirect, failed

    monkeypatch.setattr(Proposer, "_begin", lambda *_: None)  # so that the silent one stays in the view
    monkeypatch.setattr(Proposer, "deadline", lambda *_: float("inf"))
    alone(monkeypatch, Bounds)
    stage = Stage(Bounds)
    stage.world.pause(stage.hosts[2])
    with pytest.raises(Violation, match=r"has \d+ probes in a view of 3; the bound is 27"):
        stage.world.run(60.0)


def test_rumours_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(Bounds)
    a = stage.hosts[0]
    for index in range(20):
        a.machine._core.rumours.add(Update(a.id, Status.SUSPECT, 0, f"{index:016x}"))
    with pytest.raises(Violation, match="rumours in a view of 3"):
        stage.checkers.of(Bounds).adopted(a, stage.view)


def test_a_ping_with_too_many_rumours(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(Bounds)
    a, b, _ = stage.hosts
    update = Update(a.id, Status.ALIVE, 0, a.id)
    stage.observers.sent(a, b, Gossip((update,) * PIGGYBACK))
    with pytest.raises(Violation, match="sends a Gossip with 7 rumours"):
        stage.observers.sent(a, b, Gossip((update,) * 7))
    monkeypatch.setattr(Dissemination, "take", lambda self, *_: (update,) * 9)
    with pytest.raises(Violation, match="with 9 rumours"):
        stage.world.run(1.0)


def test_the_largest_ping_fits_a_datagram_that_is_never_split() -> None:
    """1200 bytes: what IPv6's smallest link carries, with room for headers and the envelope."""
    update = Update("f" * 16, Status.SUSPECT, 2**31, "e" * 16)
    ping = Ping(2**63 - 1, "f" * 16, 2**63 - 1, "e" * 16, (update,) * PIGGYBACK, b"x" * PROGRESS)
    assert len(Codec("j" * 64).encode(Envelope("j" * 64, "d" * 16, ("2001:db8::" + "1" * 20, 65535), ping))) < 1200


def test_messages_without_end_for_one_change() -> None:
    stage = Stage(Bounds)
    a, b, _ = stage.hosts
    message = Accept(2, stage.view.view_id, (0, a.id), Proposal(stage.view.view_id, 2))
    for _ in range(PER_CHANGE * 2 * 3):
        stage.observers.sent(a, b, message)
    with pytest.raises(Violation, match=r"55 messages for epoch 2 in 0\.000 s; the bound is 54"):
        stage.observers.sent(a, b, message)


def test_every_table_has_a_bound() -> None:
    assert set(sizes(Stage(Bounds).hosts[0].machine)) == set(TABLES)
