"""SIGTERM at whatever moment: the worker finishes its step, leaves, exits with 0; the others go on without a failed call."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.basics import lives
from tests.processes.stage.stage import Player, Stage, healthy

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

GROUP = {"group": True}


LIMIT = 100.0
"""Seconds that anything may take: some of these have three workers at work on a busy machine."""


def going(stage: Stage, *players: Player, calls: int = 3) -> None:
    stage.going(*players, calls=calls, limit=LIMIT)


def until(stage: Stage, what: str, condition: Callable[[], Any]) -> None:
    stage.until(what, condition, LIMIT)


def event(stage: Stage, player: Player, name: str) -> dict[str, Any]:
    return stage.event(player, name, LIMIT)


def gone(stage: Stage, *players: Player) -> None:
    """They have ended well."""
    codes = stage.ended(*players, limit=LIMIT)
    assert codes == [0] * len(players), [(player, player.error, player.output()) for player in players]
    healthy(*players)


def left(stage: Stage, leaver: Player, *others: Player) -> None:
    """It has ended well, the others go on, and none of them had to do a call again."""
    gone(stage, leaver)
    going(stage, *others)
    healthy(*others)
    for player in others:
        counts = player.event("counts")
        assert counts is None or counts["redone"] == 0, (player, player.output())


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """Nobody is taken for dead because the machine is busy."""
    stage.clear(exclude_after=20.0)
    return stage


@pytest.mark.parametrize("index", [0, 2], ids=["senior", "junior"])
def test_at_whatever_moment(stage: Stage, index: int) -> None:
    players = stage.found("leaver", "leaver", "leaver", given=[{"rest": 0.01}])
    going(stage, *players)
    leaver = players.pop(index)
    leaver.signal(signal.SIGTERM)
    left(stage, leaver, *players)
    assert "SIGTERM: this worker leaves after the call in progress, or else the next" in leaver.output()


def test_in_a_long_forward_pass(stage: Stage) -> None:
    """It contributes to one average more, and that is its last."""
    slow, *others = stage.found("leaver", "leaver", "leaver", given=[{"rest": 0.7}, {}, {}])
    going(stage, slow, *others, calls=2)
    before = len(slow.events("works"))
    until(stage, "it works", lambda: len(slow.events("works")) > max(before, len(slow.calls)))
    works = len(slow.events("works"))
    slow.signal(signal.SIGTERM)
    left(stage, slow, *others)
    assert len(slow.events("works")) == works, "it began another step"
    assert len(slow.events("calls")) == works, "it did not finish its step"


def test_to_a_process_group_with_data_loaders(stage: Stage) -> None:
    """The signal comes twice, as ``timeout`` sends it; it ends neither the loader's processes nor the step."""
    leaver, other = stage.found("leaver", "leaver", given=[{"rest": 0.05, "loaders": 2, **GROUP}, {"rest": 0.01}])
    going(stage, leaver, other)
    children = children_of(leaver.pid)
    assert len(children) == 2
    leaver.signal(signal.SIGTERM)
    os.killpg(leaver.pid, signal.SIGTERM)
    left(stage, leaver, other)
    assert "DataLoader" not in leaver.output()
    until(stage, "the loader's processes have ended", lambda: not any(map(lives, children)))


def children_of(pid: int) -> list[int]:
    """Those that the program has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if Path(f"/proc/{child}/comm").read_text().strip() != "ftlib-nursery"]


def test_a_loop_that_looks_stops_where_it_wants_to(stage: Stage, tmp_path: Path) -> None:
    """With a checkpoint of its last step, though nobody finishes a later call with it."""
    looking = {"rest": 0.05, "looks": str(tmp_path / "kept")}
    leaver, *others = stage.found("leaver", "leaver", "leaver", given=[looking, {}, {}])
    going(stage, leaver, *others)
    leaver.signal(signal.SIGTERM)
    gone(stage, leaver)
    stopped = event(stage, leaver, "own point")
    assert event(stage, leaver, "after the loop")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"step-{stopped['step']:012}-epoch-00000001"]
    going(stage, *others)
    healthy(*others)


def test_a_second_signal_ends_it_at_once(stage: Stage) -> None:
    slow, other = stage.found("leaver", "leaver", given=[{"rest": 5.0}, {}])
    until(stage, "it works", lambda: slow.event("works"))
    slow.signal(signal.SIGTERM)
    until(stage, "it knows", lambda: "this worker leaves" in slow.output())
    assert slow.code is None

    def again() -> bool:
        if slow.code is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                slow.signal(signal.SIGTERM)  # one too soon is taken for the first
        return slow.code is not None

    until(stage, "it ends", again)
    assert slow.code == 128 + signal.SIGTERM
    going(stage, other)


def test_a_spare_waits_no_longer(stage: Stage) -> None:
    [member] = stage.found("leaver", max_size=1)
    going(stage, member)
    spare = stage.join("leaver", max_size=1)
    event(stage, spare, "calls")
    spare.signal(signal.SIGTERM)
    gone(stage, spare)
    assert not spare.calls
    going(stage, member)


def test_while_it_looks_for_the_job(stage: Stage) -> None:
    seeker = stage.start("leaver", introducers=["127.0.0.1:9"], bind="127.0.0.1:0")
    event(stage, seeker, "starting")
    until(stage, "its agent runs", lambda: len(list(Path(f"/proc/{seeker.pid}/task").iterdir())) > 2)
    seeker.signal(signal.SIGTERM)
    gone(stage, seeker)
    assert not seeker.event("init")
    assert "Traceback" not in seeker.output()


def test_without_a_quorum(stage: Stage) -> None:
    """Nothing will ever finish its call."""
    leaver, *others = stage.found("leaver", "leaver", "leaver", given=[{"rest": 0.01}], exclude_after=4.0)
    going(stage, leaver, *others)
    for other in others:
        other.signal(signal.SIGSTOP)
    until(stage, "somebody is suspected", lambda: "does not answer" in leaver.output())
    leaver.signal(signal.SIGTERM)
    gone(stage, leaver)


def test_in_another_thread_than_the_main_one(stage: Stage) -> None:
    leaver, other = stage.found("leaver", "leaver", given=[{"rest": 0.05, "thread": True}, {}])
    going(stage, leaver, other)
    leaver.signal(signal.SIGTERM)
    left(stage, leaver, other)
    assert leaver.event("after the loop"), "its main thread went on when the other one had ended"


@pytest.mark.parametrize("when", ["earlier", "later"])
def test_the_programs_own_handler_counts(stage: Stage, when: str) -> None:
    leaver, other = stage.found("leaver", "leaver", given=[{"rest": 0.05, "handler": when}, {}])
    going(stage, leaver, other)
    leaver.signal(signal.SIGTERM)
    left(stage, leaver, other)
    assert leaver.event("handled")
    assert "the program's own handler: this worker leaves" in leaver.output()


def test_in_a_callback(stage: Stage) -> None:
    leaver, other, third = stage.found("leaver", "leaver", "leaver", given=[{"lingers": 1.0}, {}, {}])
    going(stage, leaver, other, third)
    third.signal(signal.SIGTERM)
    event(stage, leaver, "lingers")
    leaver.signal(signal.SIGTERM)
    gone(stage, leaver, third)
    going(stage, other)
    healthy(other)


def test_while_checkpoints_are_written(stage: Stage, tmp_path: Path) -> None:
    """One is under way nearly always; what was begun becomes complete."""
    saving = {"save": str(tmp_path / "kept"), "state": 200_000}
    leaver, other = stage.found("leaver", "leaver", given=[saving])
    until(stage, "one is complete", lambda: "is complete" in leaver.output())
    leaver.signal(signal.SIGTERM)
    left(stage, leaver, other)
    until(stage, "the next rank 0 goes on", lambda: "is complete" in other.output())
    assert "incomplete" not in leaver.output()
    assert "given up" not in leaver.output()


@pytest.mark.parametrize("recovery", ["live", "wait"])
def test_a_joiner_that_gets_the_state(stage: Stage, recovery: str) -> None:
    """It says goodbye in a call that it takes part in with nothing of its own."""
    orders: dict[str, Any] = {"rest": 0.02, "state": 500_000}
    members = stage.found("leaver", "leaver", given=[orders])
    going(stage, *members)
    joiner = stage.join("leaver", orders, recovery=recovery, recovery_bandwidth=1e5)
    until(stage, "it is on its way", lambda: "getting " in joiner.output() or joiner.calls)
    joiner.signal(signal.SIGTERM)
    gone(stage, joiner)
    going(stage, *members)
    healthy(*members)


def test_all_at_once(stage: Stage) -> None:
    players = stage.found("leaver", "leaver", "leaver", given=[{"rest": 0.01}])
    going(stage, *players)
    for player in players:
        player.signal(signal.SIGTERM)
    gone(stage, *players)
