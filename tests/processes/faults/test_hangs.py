"""Training threads that hang or are kept from running, while their agents live."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes.stage.stage import Player, Stage

pytestmark = [pytest.mark.process]


def test_a_hung_worker_steps_aside_and_says_where_it_hangs(stage: Stage) -> None:
    players = stage.found(
        "train", "absent", "train", given=[{}, {"calls": 5, "seconds": 20}, {}], agent="process", stall_timeout=2.5
    )
    away = players.pop(1)
    left = stage.event(away, "away")["t"]
    stage.until("the others go on", lambda: all(player.size == 2 for player in players))
    first = min(call["t"] for call in players[0].calls if call["size"] == 2)
    waiting = min(call["t"] for player in players for call in player.calls if call["call"] == 5)  # from a moment later on
    assert first - waiting > 2.5  # on an idle machine 2.55 s
    assert first - left < 20.0
    [steps] = {call["call"] for call in players[0].calls if call["t"] == first}
    assert steps == 6  # the very call that it did not enter
    assert stage.ended(away) == [1]
    assert away.error.startswith("Excluded: this worker stalled"), away.error
    assert "has not entered it" in away.output()
    assert "time.sleep(actor.given" in away.output()  # its stack


def test_a_held_interpreter_is_waited_for(stage: Stage) -> None:
    """9 s with T_excl at 6 s: a thread would be taken for dead."""
    players = stage.found(
        "train", "holder", "train", given=[{}, {"calls": 5, "seconds": 9.0}, {}], agent="process", exclude_after=6.0
    )
    stage.event(players[1], "released")
    stage.going(*players, size=3)
    assert all(call["size"] == 3 for player in players for call in player.calls)


def test_forked_children_hide_no_death(stage: Stage) -> None:
    orders = [{}, {"calls": 5}, {}]
    # No silence would do.
    players = stage.found("train", "preparing", "train", given=orders, agent="process", exclude_after=60.0)
    stage.going(*players, size=3, calls=9)  # after the fork, too
    victim = players.pop(1)
    victim.signal(signal.SIGKILL)
    stage.going(*players, size=2)


def agent_of(player: Player) -> int:
    """The process of its agent."""
    children = Path(f"/proc/{player.pid}/task/{player.pid}/children").read_text().split()
    [agent] = [int(pid) for pid in children if b"ftlib-agent" in Path(f"/proc/{pid}/comm").read_bytes()]
    return agent


def test_the_junior_of_two_goes_on_though_its_agent_stood_still(stage: Stage) -> None:
    """It hears of the senior's death only after longer than an ack counts: but also that the senior had not voted."""
    senior, junior = stage.found("train", "train", agent="process", exclude_after=3.0)
    stage.going(senior, junior, size=2)
    agent = agent_of(junior)
    os.kill(agent, signal.SIGSTOP)
    senior.signal(signal.SIGKILL)
    time.sleep(4.0)  # longer than exclude_after: by then no ack counts any more
    os.kill(agent, signal.SIGCONT)
    stage.going(junior, size=1)


def test_an_agent_that_is_killed_takes_its_worker_out(stage: Stage) -> None:
    players = stage.found("train", "train", "train", agent="process")
    stage.going(*players, size=3)
    victim = players.pop(1)
    os.kill(agent_of(victim), signal.SIGKILL)
    assert stage.ended(victim) == [1]
    assert "agent process ended unexpectedly (killed by SIGKILL)" in victim.error
    stage.going(*players, size=2)
