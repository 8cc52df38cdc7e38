"""Profiles and histories as text, clocks, and the shrinker."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from consensus.border import Hint
from consensus.config import Config
from consensus.protocol.state.inputs import Input
from consensus.simulation import (
    Clock,
    Event,
    FaultProfile,
    Outcome,
    Result,
    Scenario,
    ScriptError,
    World,
    draw,
    judged,
    perform,
    play,
)
from consensus.simulation.script.commands import COMMANDS
from consensus.simulation.script.fault_profile import ALL, NAMES
from consensus.simulation.script.faults import FAULTS, Part
from consensus.simulation.script.shrink import shrink
from consensus.simulation.world.timeline import allowance
from tests.harness.basics import around

STORE = [fault.name for fault in FAULTS if fault.part is Part.STORE]

# Profiles


@pytest.mark.parametrize("text", ["all", "none", "crash", "crash,halves=3", "loss=0.5,skew"])
def test_a_profile_is_its_text(text: str) -> None:
    assert str(FaultProfile.parse(text)) == text
    assert FaultProfile.parse(str(FaultProfile.parse(text))) == FaultProfile.parse(text)


def test_a_profile_takes_away() -> None:
    profile = FaultProfile.parse("-pause,-loss")
    assert profile == ALL.without("pause", "loss") == FaultProfile.parse("all,-pause,loss=0")
    assert FaultProfile.parse(str(profile)) == profile


@pytest.mark.parametrize("text", ["crush", "loss=much", "loss=-1", "-crush", "loss=inf"])
def test_a_wrong_profile_says_what_there_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"no fault is called|weight"):
        FaultProfile.parse(text)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("skew", "drift", "refuse")])
def test_every_fault_alone_makes_a_history(name: str) -> None:
    """And the job survives three of a kind."""
    scenario = draw(3, FaultProfile.parse(name), size=5, faults=3, policy="storage" if name in STORE else "")
    assert scenario.events
    assert play(scenario).good


def test_no_faults_no_events() -> None:
    scenario = draw(1, FaultProfile.parse("none"))
    assert scenario.events == () and play(scenario).kind == Outcome.AGREED.value


# Scripts


def test_what_undoes_a_command_is_one() -> None:
    assert {command.undo for command in COMMANDS.values()} <= {"", *COMMANDS}


def test_a_history_is_its_text() -> None:
    for seed in range(200):
        scenario = draw(seed, policy="any" if seed % 4 == 0 else "")
        assert Scenario.parse(str(scenario)) == scenario


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "first line"),
        ("size=3", "lacks seed"),
        ("seed=1 size=three", "takes a number"),
        ("seed=1 size=3 colour=red", "choose from"),
        ("seed=1 size=3 policy=majority", "any or storage"),
        ("seed=1 size=3\nsoon kill m1", "time in seconds"),
        ("seed=1 size=3\n1.0", "no command"),
    ],
)
def test_a_wrong_text_says_what_to_write(text: str, hint: str) -> None:
    with pytest.raises(ScriptError, match=hint):
        Scenario.parse(text)


@pytest.mark.parametrize(
    "line",
    [
        "1 explode m0",
        "1 kill",
        "1 cut m0",
        "1 cut m0 m1 m2",
        "1 loss much",
        "1 trap any Accept 0 before",
        "1 trap any Acept 1 after",
    ],
)
def test_a_wrong_event_says_what_comes_after_the_verb(line: str) -> None:
    world = judged(World(1))
    world.cluster(2)
    with pytest.raises(ScriptError, match=r"comes|choose from"):
        perform(world, Event.parse(line))


def test_events_about_nobody_do_nothing() -> None:
    text = "seed=1 size=2\n0.1 kill m7\n0.2 restart j3 m0\n0.3 start j0 m9\n0.4 cut m0 j9\n0.5 hint m4 m0"
    assert play(Scenario.parse(text)).kind == Outcome.AGREED.value


# Clocks


def test_no_two_clocks_drift_apart_by_more_than_the_protocol_allows() -> None:
    share = Config().drift
    slow, fast = 1 - allowance(share), 1 + allowance(share)
    assert slow / fast == pytest.approx(1 - share)


def test_a_clock_converts_there_and_back() -> None:
    rng = Random(1)
    for _ in range(100):
        clock = Clock.draw(rng, 1e5, 0.02)
        assert clock.when(clock.shows(123.456)) == pytest.approx(123.456, abs=1e-9)
    clock.jump(2.5)
    assert clock.when(clock.shows(7.0)) == pytest.approx(7.0)
    assert Clock().shows(100.1) == 100.1


def test_members_whose_clocks_have_nothing_in_common_agree_as_fast() -> None:
    took = []
    for skew in (0.0, 1e6):
        world = judged(World(1))
        world.faults.skew = skew
        hosts = world.cluster(4)
        world.run(1.0)
        world.kill(hosts[2])
        took.append(world.run_until(lambda hosts=hosts: len(hosts[0].activated) == 2, 1.0))  # type: ignore[misc]
    assert took[0] == pytest.approx(took[1], abs=0.002)


def test_a_fast_clock_finds_silence_sooner() -> None:
    world = judged(World(1))
    world.faults.drift = 1.0
    hosts = world.cluster(3)
    assert len({host.clock.rate for host in hosts}) == 3
    world.run(1.0)
    began = world.now
    world.pause(hosts[2])
    world.run_until(lambda: len(hosts[0].activated) == 2, 5.0)
    assert 1.9 < world.now - began < 3.0


# Shrinking


def test_a_failing_history_becomes_short() -> None:
    """``run`` stands for a protocol that cannot bear two of the events together."""

    def run(scenario: Scenario) -> Result:
        commands = [event.command for event in scenario.events]
        bad = "kill" in commands and "clog" in commands
        return Result(scenario, judged(World(1)), None, "broken" if bad else "fine")

    seed = next(seed for seed in range(100) if run(draw(seed)).violation == "broken" and len(draw(seed).events) > 8)
    short = shrink(draw(seed), run)
    assert sorted(event.command for event in short.events) == ["clog", "kill"]
    assert short.size == 1 and not short.drift
    assert run(short).violation == "broken"


def test_what_a_machine_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    from consensus.protocol.machine import Machine

    @around(monkeypatch, Machine, "handle")
    def handle(honest: Any, self: Machine, what: Input, now: float) -> None:
        honest(self, what, now)
        if isinstance(what, Hint):
            raise KeyError("x")

    result = play(Scenario.parse("seed=1 size=2\n0.1 hint m0"))
    assert not result.good and "KeyError in handle" in result.violation and isinstance(result.error, KeyError)
