"""Bad luck with real processes: workers that end in the middle, are too few, or late. The others go on, or say why not."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.harness.cluster import LIMIT
from tests.harness.nursery import Nursery
from tests.harness.program import Program, ftlib_run
from tests.processes.stage.stage import Player, Stage, healthy, one_line

pytestmark = [pytest.mark.process]


# A worker that ends in the middle


@pytest.mark.parametrize("bare", [False, True], ids=["with", "without the context manager"])
def test_user_exception(stage: Stage, bare: bool) -> None:
    given = [{}, {"calls": 10, "bare": bare, "whole_end": True}, {}]
    players = stage.found("train", "user_error", "train", given=given, exclude_after=60.0)
    bad = players.pop(1)
    assert stage.ended(bad) == [1]
    assert bad.error == 'KeyError: "the user\'s own mistake"'
    stage.going(*players)
    healthy(*players)
    longest = max(b["t"] - a["t"] for p in players for a, b in zip(p.calls, p.calls[1:], strict=False))
    assert longest < 30.0  # nobody waited until it would have been silent for too long


@pytest.mark.parametrize("part", ["train", "absent"])
def test_interrupt(stage: Stage, part: str) -> None:
    """Ctrl-C at one worker: in its calls, and while the others wait for it."""
    players = stage.found("train", part, "train", given=[{}, {"calls": 10}, {}], exclude_after=60.0)  # no silence would do
    bad = players.pop(1)
    stage.until("ten calls", lambda: len(bad.calls) >= 10)
    time.sleep(0.1)
    bad.signal(signal.SIGINT)
    stage.going(*players)
    assert stage.ended(bad) == [130]
    assert bad.error.startswith("KeyboardInterrupt")
    healthy(*players)


def test_interrupt_while_waiting(stage: Stage) -> None:
    """Ctrl-C at the worker that waits for one which never comes."""
    waiting, away = stage.found("train", "absent", given=[{}, {"calls": 10}])
    stage.event(away, "away")
    time.sleep(0.1)
    waiting.signal(signal.SIGINT)
    stage.event(waiting, "error")  # half a second until Python gets to it, one more to say goodbye
    assert stage.ended(waiting) == [130]
    assert away.code is None


def waits_for(player: Player, other: Player) -> bool:
    """Whether ``player`` has begun a call after the last one of ``other``."""
    return player.calls[-1]["step"] == other.calls[-1]["step"] and player.lines[-1].get("event") == "calls"


def test_exceptions_that_are_caught(stage: Stage, tmp_path: Path) -> None:
    """A program may catch what it raised in the middle of a call, and call again: nobody is lost, nobody diverges.

    In the middle: while it waits for the one that is held up. Where the call is finished already, and only its result is not
    yet delivered, the others apply it and this worker does not: that is its end.
    """
    hold = tmp_path / "hold"
    players = stage.found("train", "stubborn", "stubborn", given=[{"value": 1, "hold": str(hold)}, {"value": 2}, {"value": 6}])
    first = players[0]
    stage.going(*players, calls=1)
    for number in (signal.SIGINT, signal.SIGUSR2, signal.SIGINT, signal.SIGUSR2):
        for player in players[1:]:
            hold.touch()
            stage.event(first, "holds")
            stage.until("the others call", lambda player=player: waits_for(player, first))
            time.sleep(0.1)  # it is inside
            player.signal(number)
            stage.event(player, "caught")
            for each in (player, first):
                each.lines = [line for line in each.lines if line.get("event") not in ("caught", "holds")]
            hold.unlink()
            stage.going(*players, calls=1)
    assert all(call["value"] == 3.0 for player in players for call in player.calls)
    healthy(*players)


SCRIPT = """
import torch, time
from consensus.config import PROTOCOL_VERSION
from ftlib import FTLib
with FTLib.init() as ft:
    while True:
        ft.allreduce_average(torch.ones(3))
        if ft.step == 10:
            print("ten steps", flush=True)
        time.sleep(0.005)
"""


def test_interrupt_of_the_launcher(nursery: Nursery, stage: Stage, tmp_path: Path) -> None:
    """Ctrl-C in the terminal of ``ftlib run``: the workers drain, nothing is left behind, the code is 130."""
    (tmp_path / "script.py").write_text(SCRIPT)
    # "grace": nobody is killed for being slow.
    with Program(nursery, tmp_path, *ftlib_run("-n", 2, "--grace", 60, "script.py")) as launcher:
        stage.until("both have made ten steps", lambda: launcher.stdout.count("ten steps") == 2)
        os.killpg(launcher.pid, signal.SIGINT)  # as a terminal does
        assert launcher.wait(LIMIT) == 130, launcher.stderr
        said = launcher.stdout + launcher.stderr
    assert "Traceback" not in said, said
    assert "killed" not in said, said


def test_sigterm_drains(stage: Stage) -> None:
    players = stage.found("train", "train", "train", given=[{"whole_end": True}, {}, {}])
    stage.going(*players)
    leaver = players.pop(0)
    leaver.signal(signal.SIGTERM)
    stage.going(*players)
    assert stage.ended(leaver) == [0]
    assert leaver.event("exit") == {**(leaver.event("exit") or {}), "code": 0}
    for player in players:
        player.signal(signal.SIGTERM)
    assert stage.ended(*players) == [0, 0]
    healthy(*players, leaver)


def test_all_end_at_once(stage: Stage) -> None:
    """Whoever ends first leaves only after the last call has ended everywhere: all have the same result of it."""
    for _ in range(3):
        players = stage.found(*["train"] * 4, given=[{"total": 10, "rest": 0, "value": value} for value in (1, 2, 4, 9)])
        assert stage.ended(*players) == [0] * 4
        for player in players:
            assert [call["value"] for call in player.calls] == [4.0] * 10, player.calls
            assert [call["status"] for call in player.calls] == ["SUCCESS"] * 10


# Too few, and deadlines


def test_min_size(stage: Stage) -> None:
    players = stage.found("fails_thrice", "fails_thrice", given=[{"calls": 5}], min_size=2, step_timeout=8.0)
    for player in players:
        stage.event(player, "ready")
    killed = players.pop()
    killed.signal(signal.SIGKILL)
    (left,) = players
    stage.until("calls FAIL after that time", lambda: sum(call["status"] == "FAIL" for call in left.calls) >= 2)
    step = left.calls[-1]["step"]
    assert {call["step"] for call in left.calls if call["status"] == "FAIL"} == {step}
    joiner = stage.join("train", min_size=2)
    stage.going(left, joiner)
    healthy(left, joiner)


def test_max_size(stage: Stage) -> None:
    """Who is above it waits, disturbs nobody, and takes the next free place."""
    players = stage.found("train", "train", max_size=2)
    stage.going(*players)
    spare = stage.join("train", max_size=2, step_timeout=4.0)
    stage.event(spare, "init")
    time.sleep(5.0)
    stage.going(*players)
    assert spare.calls == []
    assert all(call["epoch"] == 1 for player in players for call in player.calls)
    killed = players.pop(0)
    killed.signal(signal.SIGKILL)
    stage.going(*players, spare)
    healthy(*players, spare)


def test_quorum_lost(stage: Stage) -> None:
    players = stage.found("train", "train", "train", exclude_after=6.0, quorum_timeout=6.0)
    stage.going(*players)
    left, *stopped = players
    for player in stopped:
        player.signal(signal.SIGSTOP)
    assert stage.ended(left) == [1]
    assert re.search(r"^QuorumLost: .*quorum_timeout", one_line(left.error)), left.error
    for player in stopped:
        assert player.address in left.error, left.error


def test_step_timeout_names_who_is_waited_for(stage: Stage) -> None:
    players = stage.found("train", "absent", "train", given=[{}, {"calls": 5}, {}], step_timeout=3.0)
    away = players.pop(1)
    assert stage.ended(*players) == [1, 1]
    for player in players:
        assert re.search("^RebuildTimeout: call 6.*3 s", one_line(player.error)), player.error
        assert away.address in player.error, player.error
    assert away.code is None


def test_directory_is_clean(stage: Stage, tmp_path: Path) -> None:
    """No test of this module left a process: the fixture would hang; and the zygote itself is well."""
    player = stage.start("train", {"total": 3})
    assert stage.ended(player) == [0]
    assert [call["status"] for call in player.calls] == ["NO_NEED"] * 3
