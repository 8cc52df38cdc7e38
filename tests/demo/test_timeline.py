from __future__ import annotations

import json
from pathlib import Path

import pytest

from ftlib.cli.demo.timeline import State
from ftlib.cli.demo.trainer import Notes, Tail

from .events import ADDED, AGAIN, START, STEPS, VICTIM, note, timeline


def test_states_follow_notes_and_exits() -> None:
    made = timeline()
    assert made.lives[VICTIM].state is State.KILLED
    assert {life.state for pid, life in made.lives.items() if pid != VICTIM} == {State.DONE}
    assert [life.pid for life in made.slots()] == [10, 11, AGAIN, 13, ADDED]
    assert made.code == 0


def test_who_trains_is_listed_by_rank() -> None:
    assert [life.pid for life in timeline(closed=False).training] == [10, 11, 13, AGAIN, ADDED]


def test_recovery_is_the_slowest_survivors_first_average_in_an_epoch_without_the_victim() -> None:
    made = timeline()
    kill, add = made.deeds
    assert made.recovery(kill) == pytest.approx(2.1 + 0.03 + 0.002 - 2.03)
    assert made.recovery(add) == pytest.approx(5.1 + 0.004 - 4.5)
    assert {life.pid for life in made.witnesses(kill)} == {10, 11, 13}


def test_recovery_is_unknown_while_one_survivor_has_not_gone_on() -> None:
    made = timeline()
    made.lives[13].steps = [step for step in made.lives[13].steps if step.t < START + 2.03]
    assert made.recovery(made.deeds[0]) is None


def test_who_falls_silent_meanwhile_is_no_survivor() -> None:
    """Its launcher has killed it; one that ended in another way is one of whom an average was due."""
    lost = [note("ended", 2.2, 13, worker=3, code=-9)]
    for before, recovery in ([note("fenced", 2.2, 13)], 2.1 + 0.03 + 0.001 - 2.03), ([], None):
        made = timeline(closed=False)
        made.lives[13].steps = [step for step in made.lives[13].steps if step.t < START + 2.03]
        made.launched([*before, *lost])
        assert made.recovery(made.deeds[0]) == (recovery and pytest.approx(recovery))
        assert {life.pid for life in made.survivors(made.deeds[0])} == {10, 11} | ({13} if recovery is None else set())


def test_one_step_a_number_and_events_in_order() -> None:
    made = timeline()
    assert [step.step for step in made.losses()] == list(range(1, STEPS + 1))
    texts = [event.text for event in made.events]
    assert texts[0] == "epoch 1: 4 members, workers 0, 1, 2, 3"
    assert "SIGKILL: worker 2, rank 2, pid 12" in texts
    assert "worker 4 takes part, 0.6 s after its start" in texts
    assert made.rate(START + 6.0) == pytest.approx(10, abs=1)


def test_a_tail_reads_whole_lines_once(tmp_path: Path) -> None:
    notes = Notes(tmp_path, 3)
    notes.write("born", worker=3)
    tail = Tail()
    (line,) = tail.read_all(tmp_path)
    assert line["event"] == "born" and line["worker"] == 3
    assert tail.read_all(tmp_path) == []
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("a") as file:
        file.write(json.dumps({"event": "met", "t": 1.0, "pid": 2}))
    assert tail.read(path) == []  # killed in mid-line, or not finished yet
    with path.open("a") as file:
        file.write("\n")
    assert [line["event"] for line in tail.read(path)] == ["met"]
    assert tail.read(tmp_path / "absent.jsonl") == []
