"""What is shown while the demo runs: a screen that is redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .chart import braille
from .crew import WORKERS
from .story import Story
from .timeline import Event, Lifetime, State, Timeline

__all__ = ["Lines", "Screen", "View"]

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
"""Of the workers."""
_EVENTS = 12
_STATUS_EVERY = 5.0


class View(Protocol):
    """Something that shows the run."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End."""

    def show(self, timeline: Timeline, story: Story) -> None:
        """The present state. Called often."""

    def progress(self, text: str, done: int, total: int) -> None:
        """Something that takes a while after the run."""


class Lines:
    """For a pipe or a log: each event as it comes, and a line on how things are every few seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: set[tuple[float, str]] = set()
        self._next: float | None = None
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing to undo."""

    def show(self, timeline: Timeline, story: Story) -> None:  # noqa: ARG002 - a screen shows it
        """New events, and the figures if it is time."""
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
        """Said once."""
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

    def show(self, timeline: Timeline, story: Story) -> None:
        """Draw everything anew."""
        self._timeline = timeline
        now = time.monotonic()
        room = self._console.height - 19  # what is left for the curve and the events
        rows = 8 if room >= 18 else 4 if room >= 9 else 2
        content = Group(
            self._head(timeline, story, now),
            Text(),
            self._members(timeline, now),
            Text(),
            self._loss(timeline, now, self._console.width - 6, rows),
            Text(),
            self._events(timeline, max(2, min(_EVENTS, room - rows))),
        )
        footer = Text("Ctrl-C ends it; nothing is left behind", style="dim")
        panel = Panel(content, title=Text(self._title, style="bold"), subtitle=footer, border_style="dim", padding=(1, 1))
        panel.width = self._console.width - 2  # the terminal's ^C must not break the line
        self._live.update(panel, refresh=True)

    def progress(self, text: str, done: int, total: int) -> None:
        """One bar."""
        bar = ProgressBar(total=max(1, total), completed=done, width=30)
        row = Table.grid(padding=(0, 2))
        row.add_row(bar, Text(text))
        self._live.update(row, refresh=True)

    def _head(self, timeline: Timeline, story: Story, now: float) -> RenderableType:
        newest, first = timeline.newest, timeline.first
        gone = 0.0 if first is None else now - first
        total = max(self._seconds, gone)
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=total, completed=gone, width=30),
            Text(f"{gone:.0f} s of {total:.0f}", style="dim"),
            Text(story.next, style="italic"),
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
            table.add_row()  # the rest stays where it is
        return table

    @staticmethod
    def _status(life: Lifetime, now: float) -> Text:
        text = life.state.value
        if life.state in {State.STARTING, State.JOINING}:
            text += f", {now - life.born:.1f} s"
        elif life.state is State.TRAINING and life.last is not None and life.last.rank == 0:
            text += ", most senior"
        return Text(text, style=_STYLES[life.state])

    def _loss(self, timeline: Timeline, now: float, width: int, rows: int) -> RenderableType:
        left = timeline.first or now
        right = max(now, left + self._seconds)
        space = width - 8
        lines, high, low = braille([(step.t, step.loss) for step in timeline.losses()], left, right, space, rows)
        marks = [" "] * space
        for deed in timeline.deeds:
            marks[min(space - 1, int((deed.t - left) / (right - left) * space))] = "▲"
        text = Text(no_wrap=True, overflow="crop")
        for number, line in enumerate(lines):
            label = (
                "" if timeline.first is None else {0: f"{high:.3f}", rows // 2: "loss", rows - 1: f"{low:.3f}"}.get(number, "")
            )
            text.append(f"{label:>6}  ", style="dim")
            text.append(f"{line}\n", style="cyan")
        text.append(f"{'':8}{''.join(marks)}", style="bold red")
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
