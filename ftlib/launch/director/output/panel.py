"""The live view below the lines of the workers, on a terminal: hosts, their workers, sizes, restarts.

It is drawn below the cursor, which then goes back to where it was: whatever anybody writes next, this process's own prints too,
lands where the view begins, and the view is erased from the cursor on. So it can hide nothing and costs no line of output.
"""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

MOST = 12
"""Hosts that are shown by name: those in trouble first."""
_ERASE = "\x1b[J"


@dataclass(frozen=True, slots=True)
class HostFacts:
    """One host as it is shown."""

    name: str
    state: str
    running: int
    slots: int
    members: int
    """Workers that are members of a view."""
    restarts: int
    why: str = ""
    """Why it was lost, while it is."""

    @property
    def well(self) -> bool:
        """Whether it is as it should be."""
        return self.state == "up" and self.running >= self.slots


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """All hosts at one moment."""

    job: str
    hosts: Sequence[HostFacts]

    def headline(self, seconds: float) -> str:
        """The launch as a whole."""
        running, slots = sum(host.running for host in self.hosts), sum(host.slots for host in self.hosts)
        size, restarts = sum(host.members for host in self.hosts), sum(host.restarts for host in self.hosts)
        minutes, rest = divmod(int(seconds), 60)
        members = f", {size} in the view" if size else ""
        return f"{self.job}, {minutes}:{rest:02}: {running} of {slots} workers{members}, {restarts} restarts"


class Stream(Protocol):
    """What is needed of a stream of text."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""

    def write(self, text: str, /) -> object:
        """Take a text."""

    def flush(self) -> None:
        """Have it out."""


class Panel:
    """Use on one thread, which also writes the lines."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._facts: LaunchFacts | None = None
        self._began = time.monotonic()
        self._shown = False

    @staticmethod
    def possible(stream: Stream | None) -> bool:
        """Whether ``stream`` is a terminal that can move its cursor."""
        try:
            return stream is not None and stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
        except ValueError:  # closed
            return False

    def update(self, facts: LaunchFacts) -> None:
        """What to show from now on."""
        self._facts = facts

    def erase(self) -> None:
        """Before lines are written."""
        if self._shown:
            self._shown = False
            self._write(_ERASE)

    def draw(self) -> None:
        """When no line waits to be written."""
        if self._facts is None:
            return
        size = shutil.get_terminal_size((100, 24))
        lines = ["", *_lines(self._facts, time.monotonic() - self._began, size.columns - 1)][: max(2, size.lines - 2)]
        self._shown = True
        self._write(_ERASE + "".join(f"{line}\n" for line in lines) + f"\x1b[{len(lines)}A\r")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            self._facts = None  # the terminal is gone


def panel_on(stream: Stream | None) -> Panel | None:
    """One on this stream; None where that is no terminal."""
    return Panel(stream) if stream is not None and Panel.possible(stream) else None


def _lines(facts: LaunchFacts, seconds: float, width: int) -> list[str]:
    from rich.console import Console  # noqa: PLC0415 - only terminals need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    shown = sorted(facts.hosts, key=lambda host: host.well)[:MOST]
    rows = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("host", "state", "workers", "in the view", "restarts", ""):
        rows.add_column(name, no_wrap=True, overflow="ellipsis")
    for host in facts.hosts:
        if host in shown:
            style = "" if host.well else "yellow"
            counts = (f"{host.running}/{host.slots}", str(host.members), str(host.restarts))
            rows.add_row(*(Text(" ".join(cell.split()), style) for cell in (host.name, host.state, *counts, host.why)))
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=max(20, width), highlight=False, legacy_windows=False)
    console.print(Text(facts.headline(seconds), "bold"), no_wrap=True, overflow="ellipsis", crop=True)
    console.print(rows)
    left = len(facts.hosts) - len(shown)
    if left:
        console.print(Text(f"and {left} hosts more", "dim"))
    return text.getvalue().splitlines()
