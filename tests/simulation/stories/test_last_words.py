"""A worker's program is killed, and its agent outlives it for a moment: what it says last lets the others go on without it.

In the drawn histories here programs are killed so, and in all others whole processes are.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from consensus.config import Config
from consensus.messages import Evidence, EvidenceKind
from consensus.protocol import machine
from consensus.simulation import Host, World, draw, judged, play
from consensus.simulation.script.scenario import POLICIES, Scenario
from tests.simulation.data_plane import mixing, random_history
from tests.simulation.data_plane import play as train

CHUNK = 20
SOAK = 2000


def told(scenario: Scenario) -> Scenario:
    """The same history, in which agents outlive their programs."""
    events = (replace(event, command="bereave") if event.command == "kill" else event for event in scenario.events)
    return replace(scenario, events=tuple(events))


def founded() -> tuple[World, Host, Host]:
    """Two have just founded a job. The junior's agent is held up now, for longer than it remembers an ack."""
    world = judged(World(3, Config()))
    senior, junior = world.cluster(2)
    world.stall(junior, world.config.exclude_after + 0.5)
    return world, senior, junior


def alone(host: Host) -> bool:
    return host.activated[-1].ids == (host.id,)


def test_the_junior_of_two_goes_on_however_long_ago_it_met_the_senior() -> None:
    world, senior, junior = founded()
    world.bereave(senior)
    world.run(world.config.exclude_after + 0.5)
    assert not alone(junior)
    assert world.run_until(lambda: alone(junior), 1.0) < 0.1


def test_without_such_words_it_cannot_know_that_it_was_not_voted_out() -> None:
    world, senior, junior = founded()
    world.kill(senior)
    world.run(20.0)
    assert not alone(junior)


@pytest.mark.parametrize("first", [0, 20, 40, *(pytest.param(n, marks=pytest.mark.soak) for n in range(60, SOAK, CHUNK))])
def test_survivors_agree_after_any_history(first: int) -> None:
    bad = [str(result) for seed in range(first, first + CHUNK) if not (result := play(told(draw(seed)))).good]
    assert not bad, "\n".join(bad)


def test_planted_words_that_deny_a_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkers compare what is said with the votes that were sent."""

    def denies(view_id: str, accused: str, kind: EvidenceKind, detail: str, _no_vote: bool) -> Evidence:
        return Evidence(view_id, accused, kind, detail, no_vote=True)

    monkeypatch.setattr(machine, "Evidence", denies)
    played = (play(told(draw(seed))) for seed in range(60))
    assert any("denies its vote" in str(result) for result in played if not result.good)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(6, SOAK // 4, 6))])
def test_promises_hold_where_they_train(first: int) -> None:
    for seed in range(first, first + 6):
        policy = POLICIES[seed % 3]
        result = train(told(random_history(seed, policy)), jobs=mixing(seed))
        assert result.good, f"seed {seed}: {result}"
