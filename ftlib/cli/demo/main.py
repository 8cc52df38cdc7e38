"""``ftlib demo``: start the crew, cause the faults in turn, show what happens, and report whether the promises were kept."""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
import time
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from ...common.processes import describe_exit
from ...errors import ConfigError
from ...launch.command import Seconds
from ...launch.processes.process import require_linux
from ...launch.run.plan import random_job
from .crew import Crew, prepare
from .digits import Digits
from .live import Lines, Screen, View, print_report
from .plot import draw
from .reference import undisturbed
from .report import Report
from .schedule import FaultSchedule
from .timeline import Timeline
from .trainer import STEPS, Tail, Training

_INTRODUCTION = """\
Four workers learn to read handwritten digits. One will be killed, one stopped, one more added, and then the most senior is \
killed. Nobody restarts the training; dead workers come back and join it. This takes about a minute.
"""
_TICK = 0.05
_FRAMES = 5
"""Ticks from one redraw to the next: drawing must not take the workers' time."""
_END_LIMIT = 20.0
"""Seconds that the workers may take to end after the request to stop."""
_EXTRAS = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def main(args: list[str]) -> int:
    """Run the demo with these arguments; 0 if every promise was kept, 1 if not, 130 after Ctrl-C."""
    return int(_command.main(args=args, prog_name="ftlib demo", standalone_mode=False) or 0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=Seconds(min=10), default=36.0, show_default=True, help="How long the workers train, at least.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/demo"),
    show_default=True,
    help="Where plot, report and logs go.",
)
@click.option("--seed", type=int, default=7, show_default=True, help="Of the model and of the data's order.")
@click.option(
    "--rest",
    type=Seconds(min=0),
    default=0.0,
    show_default=True,
    help="Seconds that every worker sleeps after each step, where the processors are wanted by others.",
)
@click.option(
    "--framework",
    type=click.Choice(["gloo", "isolated:gloo", "rehearsal"]),
    default="gloo",
    show_default=True,
    help="What the workers' groups are made of.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON; everything else goes to stderr.")
def _command(*, seconds: float, out: Path, seed: int, rest: float, framework: str, as_json: bool) -> int:
    """Train on handwritten digits while workers are killed, stopped and added; about a minute.

    Four workers train a small convolutional net on scikit-learn's digits. One is lost to SIGKILL, one to
    SIGSTOP, a fifth is added, and the most senior is killed. Exit code 1 if any promise was broken.
    """
    require_linux()
    for module, package in _EXTRAS.items():
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"the demo needs the package {package}: pip install 'ftlib[demo]'")
    console = Console(stderr=as_json)
    console.print(_INTRODUCTION, highlight=False)
    earlier = signal.signal(signal.SIGTERM, _terminated)
    try:
        report = _run(console, seconds, out, Training(framework, seed, rest))
    except KeyboardInterrupt:
        console.print("\nInterrupted. All workers are gone.", highlight=False)
        return 130
    finally:
        signal.signal(signal.SIGTERM, earlier)
    facts = json.dumps(report.facts(), indent=2)
    (out / "report.json").write_text(facts + "\n")
    print_report(report, console)
    for name, path in (("plot", "demo.png"), ("report", "report.json"), ("logs", "logs"), ("notes", STEPS)):
        console.print(f"{name:<8}{out / path}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        click.echo(facts)
    return 0 if report.kept else 1


def _run(console: Console, seconds: float, out: Path, training: Training) -> Report:
    try:
        prepare(out)
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror}: give a directory that can be written") from None
    digits = Digits.bundled()
    digits.save(out / "digits.npz")
    timeline = Timeline(time.monotonic())
    crew = Crew(out.resolve(), random_job(), training)
    schedule = FaultSchedule(timeline, crew, seconds)
    title = f"ftlib demo: 284,000 parameters, handwritten digits, {training.framework}"
    view: View = Screen(console, seconds, title) if console.is_terminal else Lines(console)
    with view:
        try:
            crew.start()
            _live(timeline, crew, schedule, view, out)
        finally:
            earlier = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave workers behind
            crew.end()
            signal.signal(signal.SIGINT, earlier)
        timeline.over(crew.code)
        left = crew.left()
        steps = timeline.newest.step if timeline.newest else 0
        tell = f"for comparison: the same {steps} steps in one process, undisturbed"
        reference = undisturbed(digits, training.seed, steps, lambda step: view.progress(tell, step, steps))
    report = Report.of(timeline, reference, stuck=schedule.stuck, left=left)
    draw(timeline, reference, report, out / "demo.png")
    return report


def _live(timeline: Timeline, crew: Crew, schedule: FaultSchedule, view: View, out: Path) -> None:
    """Watch until all processes have ended, or have not ended in time."""
    notes, events = Tail(), Tail()
    deadline: float | None = None
    for tick in itertools.count():
        over = crew.over  # before reading: then all that ended processes wrote is read
        timeline.launched(events.read(out / "events.jsonl"))
        timeline.noted(notes.read_all(out / STEPS))
        if crew.added is not None and crew.added.poll() is not None and timeline.lives[crew.added.pid].alive:
            timeline.ended(time.monotonic(), crew.added.pid, crew.added.returncode)
        if over:
            view.show(timeline, schedule)
            if not schedule.finished:
                schedule.give_up(f"'ftlib run' ended early ({describe_exit(crew.code or 0)}): see {out / 'launcher.log'}")
            return
        schedule.tick()
        if tick % _FRAMES == 0:
            view.show(timeline, schedule)
        if schedule.finished and deadline is None:
            deadline = time.monotonic() + _END_LIMIT
        if schedule.stuck and not schedule.finished:
            return
        if deadline is not None and time.monotonic() > deadline:
            schedule.give_up(f"the workers did not end within {_END_LIMIT:g} s")
            return
        time.sleep(_TICK)  # the refresh rate of the display, which reads what the workers have written


def _terminated(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature is given
    raise KeyboardInterrupt
