"""The live line of a simulation, on stderr, and a Ctrl-C that ends the run instead of the program."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from consensus.simulation import World

from .run import Interrupted

REFRESH = 0.1
"""Seconds between two updates of the line."""


class Line:
    """``look`` is for ``run.play``; use ``shown`` in the main thread. Nothing is drawn if stderr is no terminal."""

    def __init__(self, total: float, console: Console | None = None) -> None:
        """``total``: the whole work: simulated seconds of one run, or the number of runs."""
        console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._progress.add_task("founds the job", total=total, told="")
        self._stopping = False
        self._began = self._drawn = time.monotonic()
        self._start = 0.0
        self._before = 0
        self._runs: tuple[int, int] | None = None

    @contextlib.contextmanager
    def shown(self) -> Iterator[Line]:
        """Show the line in this block. The first Ctrl-C makes ``look`` raise Interrupted; Python handles the second one."""
        with self._progress:
            before = signal.signal(signal.SIGINT, self._stop)
            try:
                yield self
            finally:
                signal.signal(signal.SIGINT, before)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def look(self, world: World) -> None:
        """Update the line; called after each piece of a run."""
        if self._stopping:
            raise Interrupted
        now = time.monotonic()
        if now - self._drawn < REFRESH:
            return
        self._drawn = now
        alive = [host for host in world.hosts.values() if host.alive and host.stopped is None]
        epoch = max((host.activated[-1].epoch for host in alive if host.activated), default=0)
        self._start = self._start or world.now
        if self._runs is None:
            done = world.now - self._start
            rate = f"{world.events:,} events, {self._rate(world, now):,.0f}/s"
            told = f"{done:6.1f} s simulated · {rate} · epoch {epoch} · {len(alive)} alive"
            self._progress.update(self._task, description="simulates", completed=done, told=told, refresh=True)
        else:
            done_runs, failed = self._runs
            told = f"{done_runs} runs · {failed} failed · {self._rate(world, now):,.0f} events/s"
            self._progress.update(self._task, description="simulates", completed=done_runs, told=told, refresh=True)

    def ran(self, world: World, done: int, failed: int) -> None:
        """Count one of many runs that is over."""
        self._before += world.events
        self._runs = (done, failed)

    def _rate(self, world: World, now: float) -> float:
        return (self._before + world.events) / max(1e-9, now - self._began)

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stopping
