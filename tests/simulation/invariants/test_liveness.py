from __future__ import annotations

import pytest

from consensus.protocol.agreement.proposer import Proposer
from consensus.simulation.invariants import Liveness, Violation

from .stage import Stage, alone


def test_a_coordinator_that_proposes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch, Liveness)
    stage = Stage(Liveness, 4)
    monkeypatch.setattr(Proposer, "_begin", lambda *_: None)
    monkeypatch.setattr(Proposer, "deadline", lambda *_: float("inf"))
    stage.world.kill(stage.hosts[3])
    with pytest.raises(Violation, match=r"nothing has been wrong for \d+\.\d s, and yet: m0~.* in view 1"):
        stage.world.run(60.0)


def test_a_crash_that_is_answered_is_fine() -> None:
    stage = Stage(Liveness, 4)
    stage.world.kill(stage.hosts[3])
    stage.world.run(60.0)


def test_a_block_for_the_promised_reason_is_fine() -> None:
    stage = Stage(Liveness, 4)
    for host in stage.hosts[1:]:
        stage.world.faults.cut_both(stage.hosts[0].id, host.id)
    stage.world.run(1.95)
    for host in stage.hosts[1:]:
        stage.world.kill(host)
    stage.world.faults.heal()
    stage.world.run(60.0)
    assert len(stage.hosts[0].activated) == 1
