"""Every promise is found broken when it is, and named."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from rich.text import Text

from ftlib.cli.demo.live import Screen, print_report, sparkline
from ftlib.cli.demo.plot import draw
from ftlib.cli.demo.report import Report
from ftlib.cli.demo.schedule import FaultSchedule
from ftlib.cli.demo.timeline import Deed, Fault, Timeline

from .events import AGAIN, REFERENCE, START, STEPS, VICTIM, lines, timeline


def report(made: Timeline, *, stuck: str = "", left: tuple[int, ...] = ()) -> Report:
    """As if the other two faults had been done as well, at once and to the same effect."""
    if len(made.deeds) == 2:
        kill = made.deeds[0]
        made.deeds += [Deed(fault, kill.t, kill.pid, kill.worker, kill.rank) for fault in (Fault.STOP, Fault.SENIOR)]
    return Report.of(made, REFERENCE, stuck=stuck, left=list(left))


def broken(found: Report) -> list[str]:
    return [promise.name for promise in found.promises if not promise.kept]


def test_a_good_run_keeps_every_promise() -> None:
    found = report(timeline())
    assert broken(found) == [] and found.kept
    assert found.steps == STEPS and found.steps_lost == 0 and found.divergent == 0
    assert found.compared == 20 * 4 + 20 * 3 + 10 * 4 + 10 * 5
    kill, add = found.consequences[:2]
    assert kill.pause == pytest.approx(0.13, abs=0.01)
    assert kill.back == pytest.approx(4.1 + 0.003 - 2.03)
    assert add.back == pytest.approx(0.604)
    assert json.loads(json.dumps(found.facts()))["kept"] is True


def without_a_step(made: Timeline) -> None:
    del made.lives[13].steps[30]


def other_parameters(made: Timeline) -> None:
    made.lives[13].steps[30] = made.lives[13].steps[30]._replace(hash="other")


def ghost(made: Timeline) -> None:
    last = made.lives[VICTIM].steps[-1]
    made.lives[VICTIM].steps.append(last._replace(t=START + 3.0, step=last.step + 1, hash=f"h{last.step + 1}"))


def never_back(made: Timeline) -> None:
    del made.lives[AGAIN]


def other_accuracy(made: Timeline) -> None:
    for life in made.lives.values():
        life.correct = 330


def no_agreement(made: Timeline) -> None:
    made.lives[10].correct = 349


def failed_worker(made: Timeline) -> None:
    made.ended(START + 8, 13, 1)


@pytest.mark.parametrize(
    ("breaking", "name"),
    [
        (without_a_step, "No step is lost"),
        (other_parameters, "Bit for bit alike"),
        (ghost, "No ghosts"),
        (never_back, "All come back"),
        (other_accuracy, "It learns the same"),
        (no_agreement, "It learns the same"),
        (failed_worker, "Nothing is left"),
    ],
)
def test_a_broken_promise_is_named(breaking: Callable[[Timeline], None], name: str) -> None:
    made = timeline()
    breaking(made)
    assert broken(report(made)) == [name]


def test_a_schedule_that_was_not_done_is_a_broken_promise() -> None:
    assert broken(report(timeline(), stuck="the return of all 4 workers")) == ["Training goes on"]
    assert broken(Report.of(timeline(), REFERENCE, stuck="", left=[])) == ["Training goes on"]  # two faults are missing


def test_processes_left_behind_are_named() -> None:
    (promise,) = [promise for promise in report(timeline(), left=(4711,)).promises if not promise.kept]
    assert promise.name == "Nothing is left" and "4711" in promise.text


def test_a_run_without_a_single_step_is_reported_too(tmp_path: Path) -> None:
    made = timeline(noted=[line for line in lines() if line["event"] == "born"])
    made.deeds.clear()
    found = report(made, stuck="no average was finished within 90 s")
    assert not found.kept and found.steps == 0
    draw(made, REFERENCE, found, tmp_path / "plot.png")
    print_report(found, Console(file=io.StringIO()))


def test_it_is_told_in_80_columns_with_the_verdict_last() -> None:
    out = io.StringIO()
    print_report(report(timeline()), Console(file=out, width=80))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert text.rstrip().endswith("All promises were kept.")
    made = timeline()
    without_a_step(made)
    out = io.StringIO()
    print_report(report(made), Console(file=out, width=80))
    assert out.getvalue().rstrip().endswith("BROKEN: No step is lost")


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    made = timeline()
    draw(made, REFERENCE, report(made), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_falling_curve_in_blocks() -> None:
    assert sparkline([(0, 100.0), (1, 10.0), (2, 1.0)], 0, 2, 3) == "█▅▁"  # means of a column, logarithmic
    assert sparkline([(0, 100.0), (1.9, 1.0)], 0, 2, 3) == "█ ▁"  # nobody finished a step meanwhile
    assert sparkline([(1, 5.0)], 0, 2, 2) == " ▁"
    assert sparkline([(0, 0.0), (1, math.nan), (2, math.inf), (3, 1.0)], 0, 3, 4) == "   ▁"
    assert sparkline([], 0, 1, 2) == "  "


def test_the_screen_shows_the_facts() -> None:
    out = io.StringIO()
    console = Console(file=out, width=100, height=40, force_terminal=True, _environ={"TERM": "xterm-256color"})
    made = timeline(closed=False)
    with Screen(console, 36.0, "the title") as screen:
        screen.show(made, cast("FaultSchedule", SimpleNamespace(next="next: SIGSTOP")))
    text = Text.from_ansi(out.getvalue()).plain
    facts = ("the title", "next: SIGSTOP", f"step {STEPS}", "members 5", "epoch 4", "highest 2.000", "▲", "▁")
    for fact in (*facts, "● 4", "training, most senior"):
        assert fact in text, fact
    assert "SIGKILL: worker 2, rank 2, pid 12" in text and "worker 4 is added, as pid 30" in text
