"""Histories whose faults hang together, from a moment of the data plane on: see ``tests/simulation/data_plane/plot.py``.

They are the ones that draw the fork of ``tests/transcripts/golden/fork_goodbye.txt`` by themselves.
"""

from __future__ import annotations

import pytest

from consensus.protocol.agreement.proposer import Proposer
from tests.simulation.data_plane import play_plot

CHUNK = 15

soak = pytest.mark.soak


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        *((policy, 0) for policy in ("", "any", "storage")),
        *(pytest.param("", first, marks=soak) for first in range(CHUNK, 3000, CHUNK)),
        *(pytest.param(policy, first, marks=soak) for policy in ("any", "storage") for first in range(CHUNK, 1500, CHUNK)),
    ],
)
def test_promises_hold_whatever_is_plotted(policy: str, first: int) -> None:
    scenes = 0
    for seed in range(first, first + CHUNK):
        result, plot = play_plot(seed, policy)
        assert result.good, f"seed {seed}: {plot.script}\n{result.scenario}\n{result}"
        scenes += plot.scene is not None
    assert scenes >= CHUNK // 3, "most plots come to the scene that they wait for"


def bound_at_the_end_of_the_call(patch: pytest.MonkeyPatch) -> None:
    """Who leaves discounts nobody once it knows that its last call has ended: others may know that before."""

    def discounted(self: Proposer) -> frozenset[str]:
        evidence = self._core.evidence
        return frozenset() if self._core.member.id in evidence.leaving else evidence.discounted

    patch.setattr(Proposer, "discounted", property(discounted))


def test_who_is_bound_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leaver that falls behind in its last call, as in two of five plots."""
    bound_at_the_end_of_the_call(monkeypatch)
    for seed in range(60):
        result, _ = play_plot(seed, leaver=True)
        if not result.good:
            assert "at most one value of an epoch can activate" in str(result), result
            break
    else:
        pytest.fail("nobody noticed within 60 histories")
    monkeypatch.undo()
    result, _ = play_plot(seed, leaver=True)
    assert result.good, "the very history is clean under the rule"
