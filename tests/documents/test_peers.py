"""The comparison with other systems: its figures from made-up notes, its schedule, its table."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.peers import play
from benchmarks.peers.figures import Figures, figures
from benchmarks.peers.notes import Notes
from benchmarks.peers.plan import FAULTS, Round, Strike, rounds
from benchmarks.peers.play import Fault, Run
from benchmarks.peers.systems import KINDS
from benchmarks.peers.tables import PAGE, Comparison, into_docs, median

Line = dict[str, Any]


def life(slot: int, pid: int, times: Iterable[float], first: int = 1, weights: int = 0, batches: int = 1) -> list[Line]:
    """One process that makes a step at each of these times, each from so many batches right before it."""
    lines = []
    for step, when in enumerate(times, first):
        about = {"slot": slot, "pid": pid}
        lines += [{"t": when - 0.001, "kind": "batch", **about} for _ in range(batches)]
        lines.append({"t": when, "kind": "step", "step": step, "weights": weights + step, "batches": batches, **about})
    return lines


def run(folder: Path, lives: Iterable[list[Line]], faults: Iterable[Fault] = (), ended: float = 20.0, size: int = 2) -> Run:
    """A run of workers that make ten steps a second while nothing happens; it is together after 1 s."""
    for number, lines in enumerate(lives):
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    notes = Notes(folder)
    notes.refresh()
    made = Run("ftlib", 0.0, together=1.0, ended=ended, usual=0.1, pace=10.0, faults=list(faults), notes=notes)
    made.sizes.append((1.0, size))
    return made


def ticks(began: float, ended: float) -> list[float]:
    """Every tenth of a second."""
    return [tenth / 10 for tenth in range(round(began * 10), round(ended * 10))]


def kill(began: float, ended: float, *, over: bool = True) -> Fault:
    return Fault("kill", 1, 2, began, frozenset({0}), began, ended, over)


def test_a_pause_ends_where_the_survivor_goes_on(tmp_path: Path) -> None:
    """The step that was in flight does not end it."""
    lives = [life(0, 1, [*ticks(1, 5.1), *ticks(8, 20)]), life(1, 2, ticks(1, 5))]
    [(pause, over)] = figures(run(tmp_path, lives, [kill(4.95, 8.5)]), 1.0).pauses["kill"]
    assert over and pause == pytest.approx(3.0)


def test_a_pause_that_is_not_over_is_no_measurement(tmp_path: Path) -> None:
    lives = [life(0, 1, ticks(1, 5)), life(1, 2, ticks(1, 5))]
    [(pause, over)] = figures(run(tmp_path, lives, [kill(5.0, 15.0, over=False)]), 1.0).pauses["kill"]
    assert not over and pause == pytest.approx(10.0)
    assert median([(0.1, True), (pause, over), (pause, over)]) == (pause, False)
    assert median([(0.1, True), (0.2, True), (pause, over)]) == (0.2, True)
    assert median([(0.1, True), (61.0, True), (10.0, False)]) == (10.0, False), "the one that was waited for is no bound"
    assert median([(0.1, True), (10.0, False)]) == (pytest.approx(5.05), False)


def test_steps_of_two_lives_are_not_compared(tmp_path: Path) -> None:
    """After a rollback they have the same numbers, and other parameters."""
    first = [life(0, 1, ticks(1, 3)), life(1, 2, ticks(1, 3))]
    second = [life(0, 3, ticks(6, 9), first=11, weights=5), life(1, 4, ticks(6, 9), first=11, weights=5)]
    found = figures(run(tmp_path, [*first, *second], ended=9.0), 1.0)
    assert (found.compared, found.unequal, found.repeated) == (50, 0, 20)


def test_parameters_that_differ_are_counted(tmp_path: Path) -> None:
    found = figures(run(tmp_path, [life(0, 1, ticks(1, 3)), life(1, 2, ticks(1, 2)) + life(1, 2, ticks(2, 3), 11, 1)]), 1.0)
    assert (found.compared, found.unequal) == (20, 10)


def test_batches_that_were_accumulated_are_not_lost(tmp_path: Path) -> None:
    """Those that no step has are; what a process was computing when it died is not."""
    one, other = life(0, 1, ticks(1, 3), batches=4), life(1, 2, ticks(1, 3))
    other += [{"t": 2.05, "kind": "batch", "slot": 1, "pid": 2}, {"t": 2.96, "kind": "batch", "slot": 1, "pid": 2}]
    assert figures(run(tmp_path, [one, other]), 1.0).lost == 1


def test_goodput_is_of_as_many_workers_as_there_should_be(tmp_path: Path) -> None:
    lives = [life(slot, slot, ticks(1, 11)) for slot in (0, 1)] + [life(2, 9, ticks(6, 11), first=51)]
    made = run(tmp_path, lives, [Fault("join", 2, -1, 5.95, frozenset({0, 1}), 6.0, 6.3, over=True)], ended=11.0)
    made.sizes.append((6.0, 3))
    assert figures(made, 1.0).goodput == pytest.approx(1.0, abs=0.05)


def test_a_run_that_failed_shows_what_it_has_shown(tmp_path: Path) -> None:
    never = Run("ftlib", 0.0, notes=Notes(tmp_path), failed="no common steps")
    assert figures(never, 1.0).start is None
    made = run(tmp_path, [life(0, 1, ticks(1, 9)), life(1, 2, ticks(1, 5))], [kill(5.0, 5.4)])
    made.failed = "it did not come back"
    assert figures(made, 1.0).pauses["kill"][0][1] and figures(made, 1.0).failed


def test_two_rounds_play_all_and_are_the_same_whenever_drawn() -> None:
    drawn = rounds(10, 1, FAULTS, 3, 60.0, 20.0)
    assert drawn == rounds(10, 1, FAULTS, 3, 60.0, 20.0) != rounds(10, 2, FAULTS, 3, 60.0, 20.0)
    for one, other in zip(drawn[::2], drawn[1::2], strict=True):
        assert sorted(strike.kind for strike in one.schedule + other.schedule) == sorted(FAULTS)
    assert drawn[0].first | drawn[1].first == set(FAULTS) and not any(each.first for each in drawn[2:])
    assert all(0 <= strike.fraction < 1 and strike.at < 60 for each in drawn for strike in each.schedule + each.kills)


class Simulated:
    """A system whose workers are in this process: they make a step at each look, until their master is killed."""

    kind = SimpleNamespace(name="simulated", joins=False, master="the master", slow={})

    def __init__(self, folder: Path, *, hangs: bool) -> None:
        """``hangs``: the workers wait for their old master. Otherwise they die with it, and others come after a while."""
        self.notes = Notes(folder)
        self.restarted: float | None = None
        self._file, self._hangs = folder / "0.jsonl", hangs
        self._pid, self._step, self._stands = os.getpid(), 0, False
        self._killed = math.inf

    def tend(self) -> None:
        if time.monotonic() > self._killed + 3 * PATIENCE:  # the others have come
            self._pid, self._stands = os.getpid(), False
        if not self._stands:
            self._step += 1
            self._write(self._pid)

    def kill_master(self) -> None:
        self._stands = True
        if not self._hangs:
            self._killed = time.monotonic()
            with subprocess.Popen(["true"]) as dead:
                pass
            self._write(dead.pid)

    def restart(self) -> None:
        self.restarted, self._stands = time.monotonic(), False

    def _write(self, pid: int) -> None:
        lines = [line | {"slot": slot} for slot in range(4) for line in life(slot, pid, [time.monotonic()], self._step)]
        with self._file.open("a") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


PATIENCE = 0.5


@pytest.mark.parametrize("hangs", [True, False])
def test_who_waits_for_what_does_not_come_is_started_again_at_once(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not where workers have died: others may be on their way."""
    monkeypatch.setattr(play, "QUIET", 0.5)
    monkeypatch.setattr(play, "RETURN", 60.0)
    system: Any = Simulated(tmp_path, hangs=hangs)
    made = play.Player(system, PATIENCE).play(Round((Strike("master", 0.0),), (), frozenset()), 0.0)
    [fault] = made.faults
    assert not made.failed and not fault.over and made.restarts == int(hangs)
    assert (system.restarted is not None) == hangs
    assert made.ended < fault.ended + 30


def test_the_table_says_what_failed_what_is_censored_and_who_is_better(tmp_path: Path) -> None:
    ours, other, broken, gone = (kind for kind in KINDS if kind.name in {"ftlib", "torchft", "hivemind", "DDP, torchrun"})
    comparison = Comparison([ours, other, broken], {gone.name: "no such wheel"}, tmp_path, "load 0")
    for pause in (0.1, 0.2, 0.3):
        comparison.add(Figures(ours.name, pauses={"kill": [(pause, True)], "stop": [(10.0, False)]}, goodput=0.8))
        comparison.add(Figures(other.name, pauses={"kill": [(10.0, False)], "stop": [(1.0, True)]}, goodput=0.8))
        comparison.add(Figures(broken.name, failed="no common steps within 60 s"))
    comparison.remark("2 of 5 rounds did not fit.")
    assert not comparison.complete
    table = (tmp_path / "table.md").read_text()
    assert (
        "is killed: longest pause of a survivor (s), of 3 | **0.20 [0.10 - 0.30]** | > 10.00 [> 10.00 - > 10.00] | failed |"
        in table
    )
    assert (
        "is stopped: longest pause of a survivor (s), of 3 | > 10.00 [> 10.00 - > 10.00] | **1.00 [1.00 - 1.00]** | failed |"
        in table
    )
    assert "| goodput, of 3 | 0.80 [0.80 - 0.80] | 0.80 [0.80 - 0.80] | failed |" in table
    assert f"* Best at *... is stopped: longest pause of a survivor (s)*: {other.name}, 1.00; ftlib > 10.00." in table
    assert f"* Left out: {gone.name}: no such wheel" in table
    assert f"* Not played to its end: {broken.name}, run 1: no common steps within 60 s." in table
    assert "* 2 of 5 rounds did not fit." in table
    assert json.loads((tmp_path / "figures.json").read_text())["found"][ours.name][0]["goodput"] == 0.8
    more = Comparison([ours], {}, tmp_path, "load 1")
    more.resume()
    more.add(Figures(ours.name, pauses={"master": [(7.0, True)]}, goodput=0.0, apart=True))
    more.remark("One more.")
    again = (tmp_path / "table.md").read_text()
    assert "| the lighthouse, or the launcher, is killed: longest pause of a survivor (s), of 1 | 7.00 | - | failed |" in again
    rest = "\n".join(line for line in again.splitlines() if "launcher, is killed" not in line) + "\n"
    assert rest == table.replace("load 0", "load 0, then load 1") + "* One more.\n"


def test_the_docs_have_a_place_for_the_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    into_docs("| a \\1 |\n", page)
    into_docs("| b \\1 |\n", page)
    assert "<!-- peers -->\n| b \\1 |\n<!-- end -->" in page.read_text() and "| a \\1" not in page.read_text()
