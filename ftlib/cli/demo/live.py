"""The output: while the demo runs, a redrawn screen on a terminal, or plain lines elsewhere; then the report.

The report fits into 80 columns.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .crew import WORKERS
from .report import Report
from .schedule import FaultSchedule
from .timeline import Event, Fault, ProcessLife, State, Timeline

_STYLES = {
    State.STARTING: "yellow",
    State.JOINING: "yellow",
    State.TRAINING: "green",
    State.STOPPED: "bold red",
    State.KILLED: "bold red",
    State.FENCED: "bold red",
    State.DONE: "cyan",
    State.FAILED: "bold red",
}
COLOURS = ("blue", "magenta", "yellow", "green", "cyan")
"""One for each worker."""
_EVENTS = 12
_BLOCKS = "▁▂▃▄▅▆▇█"
_STATUS_EVERY = 5.0


class View(Protocol):
    """Something that shows the run."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End."""

    def show(self, timeline: Timeline, schedule: FaultSchedule) -> None:
        """Show the present state. Called often."""

    def progress(self, text: str, done: int, total: int) -> None:
        """Show the progress of a long task after the run."""


class Lines:
    """For a pipe or a log: each event as it comes, and a line of figures every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[tuple[float, str]] = set()
        self._next: float | None = None
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to undo."""

    def show(self, timeline: Timeline, schedule: FaultSchedule) -> None:  # noqa: ARG002 - a screen shows it
        """Print new events, and the figures if they are due."""
        now = time.monotonic()
        for event in timeline.events:
            key = (event.t, event.text)
            if key not in self._shown:
                self._shown.add(key)
                self._print(_line(event, timeline.start))
        newest = timeline.newest
        if newest is None:
            return
        if self._next is None or now >= self._next:
            if self._next is not None:
                figures = f"step {newest.step}, loss {newest.loss:.4f}, {timeline.rate(now):.0f} steps/s"
                self._print(_line(Event(now, f"{figures}, {len(timeline.training)} workers train"), timeline.start))
            self._next = now + _STATUS_EVERY

    def progress(self, text: str, done: int, total: int) -> None:  # noqa: ARG002 - a screen shows them
        """Print ``text`` once."""
        if text != self._text:
            self._text = text
            self._print(f"{'':14}{text}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _line(event: Event, start: float) -> str:
    return f"{event.t - start:7.2f} s  {'>>> ' if event.fault else '    '}{event.text}"


class Screen:
    """For a terminal. Leaves the list of events behind when it ends."""

    def __init__(self, console: Console, seconds: float, title: str) -> None:
        self._console = console
        self._seconds = seconds
        self._title = title
        self._timeline: Timeline | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)
        if self._timeline is not None:
            for event in self._timeline.events:
                style = "bold red" if event.fault else None
                text = _line(event, self._timeline.start)
                self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def show(self, timeline: Timeline, schedule: FaultSchedule) -> None:
        """Draw everything again."""
        self._timeline = timeline
        now = time.monotonic()
        room = self._console.height - 20  # what is left for the events
        content = Group(
            self._head(timeline, schedule, now),
            Text(),
            self._members(timeline, now),
            Text(),
            self._loss(timeline, now, self._console.width - 14),
            Text(),
            self._events(timeline, max(2, min(_EVENTS, room))),
        )
        footer = Text("Ctrl-C ends it; nothing is left behind", style="dim")
        width = self._console.width - 2  # the terminal's ^C must not break the line
        title = Text(self._title, style="bold")
        panel = Panel(content, title=title, subtitle=footer, border_style="dim", width=width, padding=(1, 1))
        self._live.update(panel, refresh=True)

    def progress(self, text: str, done: int, total: int) -> None:
        """One bar."""
        bar = ProgressBar(total=max(1, total), completed=done, width=30)
        row = Table.grid(padding=(0, 2))
        row.add_row(bar, Text(text))
        self._live.update(row, refresh=True)

    def _head(self, timeline: Timeline, schedule: FaultSchedule, now: float) -> RenderableType:
        newest, first = timeline.newest, timeline.first
        gone = 0.0 if first is None else now - first
        total = max(self._seconds, gone)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=total, completed=gone, width=30),
            Text(f"{gone:.0f} s of {total:.0f}", style="dim"),
            Text(schedule.next, style="italic"),
        )
        line = Text(no_wrap=True, overflow="crop")
        if newest is None:
            line.append("four processes import torch, meet, and agree on the first view", style="yellow")
        else:
            for label, value in (
                ("step", f"{newest.step}"),
                ("loss", f"{newest.loss:.4f}"),
                ("steps/s", f"{timeline.rate(now):.0f}"),
                ("members", f"{newest.size}"),
                ("epoch", f"{newest.epoch}"),
            ):
                line.append(f"{label} ", style="dim")
                line.append(f"{value:<8}", style="bold")
        return Group(bar, line)

    def _members(self, timeline: Timeline, now: float) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
        table.add_column("worker")
        for name in ("rank", "pid", "epoch", "step"):
            table.add_column(name, justify="right", min_width=6)
        table.add_column("status", no_wrap=True)
        for life in timeline.slots():
            last = life.last if life.state is State.TRAINING else None
            table.add_row(
                Text(f"● {life.worker}", style=COLOURS[life.worker % len(COLOURS)]),
                "" if last is None else str(last.rank),
                str(life.pid),
                "" if last is None else str(last.epoch),
                "" if last is None else str(last.step),
                self._status(life, now),
            )
        for _ in range(WORKERS + 1 - len(timeline.slots())):
            table.add_row()  # what stands below keeps its place
        return table

    @staticmethod
    def _status(life: ProcessLife, now: float) -> Text:
        text = life.state.value
        if life.state in {State.STARTING, State.JOINING}:
            text += f", {now - life.born:.1f} s"
        elif life.state is State.TRAINING and life.last is not None and life.last.rank == 0:
            text += ", most senior"
        return Text(text, style=_STYLES[life.state])

    def _loss(self, timeline: Timeline, now: float, width: int) -> RenderableType:
        """Return the curve in blocks, on a logarithmic axis, with marks at the faults; the report has a picture."""
        left = timeline.first or now
        right = max(now, left + self._seconds)
        losses = timeline.losses()
        marks = [" "] * width
        for deed in timeline.deeds:
            marks[min(width - 1, int((deed.t - left) / (right - left) * width))] = "▲"
        text = Text(no_wrap=True, overflow="crop")
        text.append("loss  ", style="dim")
        text.append(sparkline([(step.t, step.loss) for step in losses], left, right, width), style="cyan")
        text.append(f"\n{'':6}{''.join(marks)}", style="bold red")
        values = [step.loss for step in losses]
        text.append(f"\n{'':6}highest {max(values):.3f}, lowest {min(values):.3f}" if values else "\n", style="dim")
        return text

    @staticmethod
    def _events(timeline: Timeline, rows: int) -> RenderableType:
        lines = Text(no_wrap=True, overflow="ellipsis")
        events = timeline.events[-rows:]
        for event in events:
            lines.append(f"{event.t - timeline.start:7.2f} s  ", style="dim")
            lines.append(f"{event.text}\n", style="bold red" if event.fault else "")
        lines.append("\n" * (rows - len(events)))  # the panel keeps its height
        lines.right_crop(1)
        return lines


def sparkline(points: Sequence[tuple[float, float]], left: float, right: float, width: int) -> str:
    """Return one block character for each column: (x, y) from ``left`` to ``right``, y on a logarithmic axis, column means.

    Points with y not above 0 or not finite are left out, since a logarithmic axis has no place for them.
    """
    columns: dict[int, list[float]] = {}
    for x, y in points:
        if left <= x <= right and 0 < y < math.inf:
            columns.setdefault(min(width - 1, int((x - left) / max(right - left, 1e-9) * width)), []).append(math.log(y))
    means = {column: statistics.fmean(values) for column, values in columns.items()}
    low, span = min(means.values(), default=0.0), max(means.values(), default=0.0) - min(means.values(), default=0.0)
    heights = {column: round((mean - low) / (span or 1.0) * (len(_BLOCKS) - 1)) for column, mean in means.items()}
    return "".join(_BLOCKS[heights[column]] if column in heights else " " for column in range(width))


# The report.

NOISE = (
    "Why not the very same accuracy: four workers add up in another order than one process does, and the step in which a "
    "worker dies is averaged over the survivors' share of its batch. One image is 0.3 points."
)
LEGEND = (
    "next average: from the signal until the last survivor has finished an average without the victim. longest pause: between "
    "two averages of any other worker meanwhile. back after: until the worker trains again, imports included."
)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def render(report: Report) -> RenderableType:
    """The figures and the promises."""
    faults = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("what was done", "to worker", "at"):
        faults.add_column(name, no_wrap=True)
    for name in ("next\naverage", "longest\npause", "back\nafter"):
        faults.add_column(name, justify="right", no_wrap=True)
    for found in report.consequences:
        added = found.fault == Fault.ADD.value
        faults.add_row(
            found.fault,
            f"{found.worker}" if added else f"{found.worker}, rank {found.rank}",
            f"{found.at:.1f} s",
            Text("-", style="dim") if added else Text(_ms(found.recovery), style="bold"),
            _ms(found.pause),
            _ms(found.back),
        )
    promises = Table.grid(padding=(0, 2))
    for promise in report.promises:
        mark = Text("✔", style="bold green") if promise.kept else Text("✘", style="bold red")
        style = "" if promise.kept else "red"
        promises.add_row(mark, Text(promise.name, style="bold", no_wrap=True), Text(promise.text, style=style))
    summary = Text.assemble(
        (f"{report.steps} steps", "bold"),
        f" in {report.seconds:.1f} s, usually {_ms(report.step_seconds)} each; {report.epochs} epochs, ",
        f"{report.processes} processes. ",
        f"Loss of the last 100 steps: {_loss(report.last_loss)}, undisturbed {_loss(report.reference_last_loss)}.",
    )
    return Group(faults, Text(LEGEND, style="dim"), Text(), summary, Text(), promises, Text(), Text(NOISE, style="dim"))


def print_report(report: Report, console: Console) -> None:
    """The report and the verdict."""
    console.print(render(report), highlight=False)
    broken = [promise.name for promise in report.promises if not promise.kept]
    verdict = (
        Text(f"BROKEN: {', '.join(broken)}", style="bold red")
        if broken
        else Text("All promises were kept.", style="bold green")
    )
    console.print(Text(), verdict, Text(), sep="\n")
