"""Random histories with a shared store that is slow, away, and leaves doubts: it decides, and whoever lives goes on."""

from __future__ import annotations

import pytest

from consensus.config import Config, Liveness, Policy
from consensus.simulation import Outcome, Scenario, draw, play
from consensus.simulation.script.commands import COMMANDS
from tests.simulation.data_plane import play as play_training
from tests.simulation.data_plane import random_history

from .volume import mostly_soak

CHUNK = 20
SEEDS = 500
SMALL = (2, 3, 3, 4, 3, 5, 3, 4, 1, 3)
TRAINING = 12


def history(seed: int) -> Scenario:
    """Mostly of few members: these take turns at the store most often. ``benchmarks soak --policy storage`` plays all sizes."""
    return draw(seed, size=8 if seed % 25 == 0 else SMALL[seed % 10], policy="storage")


@pytest.mark.parametrize("first", mostly_soak(range(0, SEEDS, CHUNK), 8))
def test_the_living_agree_after_any_history(first: int) -> None:
    """Every invariant is checked at every event, and nobody is ever blocked: any number of members may be lost."""
    bad = []
    for seed in range(first, first + CHUNK):
        scenario = history(seed)
        result = play(scenario)
        if result.verdict is None or result.verdict.outcome not in (Outcome.AGREED, Outcome.NOBODY):
            bad.append(f"{result}\n{scenario}")
    assert not bad, "\n".join(bad)


def test_the_histories_have_every_fault_and_every_kind_of_store() -> None:
    scenarios = [history(seed) for seed in range(SEEDS)]
    commands = {event.command for scenario in scenarios for event in scenario.events}
    assert commands == set(COMMANDS) - {"store_wiped", "bereave"}
    for name in ("leases", "files", "notices", "alone"):
        assert 50 < sum(getattr(scenario, name) for scenario in scenarios) < 450
    configs = [scenario.config(Config()) for scenario in scenarios]
    assert {config.policy for config in configs} == {Policy.STORAGE}
    assert {config.liveness for config in configs} == set(Liveness)


def test_a_history_with_a_store_is_its_text_and_the_same_again() -> None:
    for seed in range(30):
        scenario = history(seed)
        assert Scenario.parse(str(scenario)) == scenario
    assert play(history(7)).world.digest == play(history(7)).world.digest


def test_a_store_that_is_away_changes_nothing_and_stops_nobody() -> None:
    """What was not recorded before waits; what comes back goes on."""
    scenario = Scenario.parse("seed=3 size=4 policy=storage\n1 store_away\n2 kill m1\n2.1 start j0 m2\n9 stall m2 0.01")
    result = play(scenario)
    assert result.good and result.verdict is not None and result.verdict.outcome is Outcome.AGREED
    for host in result.world.hosts.values():
        assert host.stopped is None
    assert [host.activated[0].epoch for host in result.world.hosts.values()][:4] == [1] * 4
    changed = [time for time, _, what in result.world.trace if what.startswith("activate")]
    away = 100 + 1 + changed[0] - 100
    assert not [time for time in changed if away < time < away + 8], "nothing is decided meanwhile"
    assert max(changed) > away + 8


@pytest.mark.parametrize("files", [0, 1])
@pytest.mark.parametrize("leases", [0, 1])
def test_a_wiped_store_is_noticed_and_nobody_forks(files: int, leases: int) -> None:
    header = f"seed=5 size=4 policy=storage files={files} leases={leases} rest=12"
    result = play(Scenario.parse(f"{header}\n1 store_wiped\n1.5 kill m1"))
    assert result.good, str(result)
    assert {type(host.stopped).__name__ for host in result.world.hosts.values() if host.alive} == {"StoreWipedError"}


@pytest.mark.parametrize("seed", mostly_soak(range(TRAINING), 6))
def test_no_step_is_lost_where_a_store_decides(seed: int) -> None:
    """Processes that train, whose promises are checked, too; in the end training goes on."""
    result = play_training(random_history(seed, policy="storage"))
    assert result.good, f"{result.scenario}\n{result}"
