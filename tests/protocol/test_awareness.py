"""Local health: a bounded score that stretches own timeouts."""

from __future__ import annotations

from consensus.protocol.state.lifeguard import Awareness


def test_healthy_stretches_nothing() -> None:
    assert Awareness(8).stretch(0.5) == 0.5


def test_worse_stretches_and_better_relaxes() -> None:
    awareness = Awareness(8)
    awareness.worse(3)
    assert awareness.stretch(0.5) == 2.0
    awareness.better()
    assert awareness.score == 2


def test_bounded_at_both_ends() -> None:
    awareness = Awareness(8)
    awareness.better()
    assert awareness.score == 0
    awareness.worse(100)
    assert awareness.score == 8


def test_a_failed_probe_counts_as_much_as_one_that_is_answered() -> None:
    awareness = Awareness(8)
    awareness.worse()
    assert awareness.stretch(0.5) == 1.0
    awareness.better()
    assert awareness.stretch(0.5) == 0.5
