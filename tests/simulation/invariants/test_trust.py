from __future__ import annotations

from typing import Any

import pytest

from consensus.protocol.agreement.proposer import Proposer
from consensus.protocol.detection.detection import Detection
from consensus.protocol.detection.probe import Prober
from consensus.simulation.invariants import Trust, Violation
from tests.harness.basics import around

from .stage import Stage, alone


def silence_for_a_while(stage: Stage) -> None:
    stage.world.pause(stage.hosts[2])
    stage.world.run(1.4)
    stage.world.resume(stage.hosts[2])
    stage.world.run(8.0)


def test_an_answer_that_clears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: neither an ack nor word of a higher incarnation ends a suspicion."""
    monkeypatch.setattr(Detection, "_clear", lambda *_: None)
    monkeypatch.setattr(Detection, "merge", lambda *_, **__: None)
    alone(monkeypatch, Trust)
    stage = Stage(Trust)
    with pytest.raises(Violation, match=r"m.* still suspects m.*, which has just refuted that"):
        silence_for_a_while(stage)


def test_suspects_that_nobody_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: after the first suspicion nobody is pinged, and rumours are not believed: the bound shows it."""

    @around(monkeypatch, Prober, "begin_round")
    def begin_round(honest: Any, self: Prober, targets: list[object], interval: float, now: float) -> list[object]:
        if now < 101.5:
            return honest(self, targets, interval, now)  # type: ignore[arg-type, return-value]
        self.next_round = now + 0.5
        return []

    monkeypatch.setattr(Detection, "merge", lambda *_, **__: None)
    monkeypatch.setattr(Proposer, "_begin", lambda *_: None)  # so that the suspect stays in the view
    monkeypatch.setattr(Proposer, "deadline", lambda *_: float("inf"))
    monkeypatch.setattr(Detection, "answered_check", lambda *_: None)
    alone(monkeypatch, Trust)
    stage = Stage(Trust)
    with pytest.raises(Violation, match=r"though both have been well .*; the bound is"):
        silence_for_a_while(stage)


def test_the_bound_grows_with_the_logarithm() -> None:
    trust = Stage(Trust).checkers.of(Trust)
    assert trust.bound(3) == trust.bound(32) < trust.bound(100) < trust.bound(1000) < 2 * trust.bound(100)


def test_a_refuted_suspicion_is_fine() -> None:
    silence_for_a_while(Stage(Trust))
