"""All output of the launcher: to the terminal, one log file a worker, and the file of events; and the summary of a run."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...common.processes import describe_exit
from ...errors import ConfigError
from ..processes.output import Folder, Writer, prefix, prefix_of_several, render
from ..processes.worker import Paused, Worker
from .restarts import RestartPolicy, WorkerPhase, WorkerRecord

_STDOUT, _STDERR = 1, 2
_FOLD_WITHIN = 0.1
"""Seconds that a line for a terminal is kept, so that the same line of other workers is shown with it."""
_MOST_KEPT = 1000


class Console:
    """The only output of the launcher. Use from the loop's thread; two ``Writer`` threads do the writing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, *, workers: int = 1, log_dir: Path | None = None, events: Path | None = None
    ) -> None:
        """``workers``: how many write. On a terminal, equal lines of several are shown once."""
        self._loop = loop
        self._folds = {fd: workers > 1 and os.isatty(fd) for fd in (_STDOUT, _STDERR)}
        self._folder = Folder()
        self._unfolding: asyncio.TimerHandle | None = None
        self._files: list[int] = []
        self._logs: dict[int, int] = {}
        self._log_dir = log_dir
        if log_dir is not None:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"--log-dir {log_dir}: {error.strerror}: give a directory that can be written") from None
        self._events = self._open(events, "--events") if events is not None else None
        plain = "NO_COLOR" in os.environ
        self._coloured = {fd: os.isatty(fd) and not plain for fd in (_STDOUT, _STDERR)}
        self._paused: list[Paused] = []
        self._terminal = Writer(self._room_from_thread)
        self._disk = Writer(self._room_from_thread)  # a paused terminal must not delay the files

    # What workers write (the Sink of worker.py).

    @property
    def full(self) -> bool:
        """Whether reading from workers should pause."""
        return self._terminal.full or self._disk.full

    def lines(self, worker: Worker, lines: Sequence[bytes], *, error: bool) -> None:
        """Whole lines of a worker: prefixed to the terminal, untouched to its log. What is no worker speaks as the launcher."""
        if worker.index < 0:
            for line in lines:
                self.say(f"{worker.name}: {line.decode('utf-8', 'replace')}")
            return
        self._show(worker, lines, error=error)
        log = self._logs.get(worker.index)
        if log is not None:
            self._disk.put(log, b"".join(line + b"\n" for line in lines))

    def progress(self, worker: Worker, line: bytes, *, error: bool) -> None:
        """A progress bar's present state; to the terminal only."""
        self._unfold()
        fd = _STDERR if error else _STDOUT
        self._terminal.put(fd, render(prefix(worker.index, coloured=self._coloured[fd]), line))

    def pause(self, stream: Paused) -> None:
        """Resume ``stream`` when there is room."""
        self._paused.append(stream)
        if not self.full:  # there was room again between the two calls
            self._room()

    # What the launcher itself says.

    def say(self, text: str) -> None:
        """One line to stderr."""
        self._unfold()
        mark = "\x1b[1m[ftlib]\x1b[0m" if self._coloured[_STDERR] else "[ftlib]"
        self._terminal.put(_STDERR, f"{mark} {text}\n".encode())

    def write(self, text: str) -> None:
        """Write text unchanged to stderr."""
        self._unfold()
        self._terminal.put(_STDERR, text.encode())

    @property
    def coloured(self) -> bool:
        """Whether stderr shows colours."""
        return self._coloured[_STDERR]

    def event(self, kind: str, **facts: Any) -> None:
        """One line to the file of events: what happened, with both clocks (``t``: CLOCK_MONOTONIC)."""
        if self._events is not None:
            record = {"event": kind, "t": time.monotonic(), "time": time.time(), **facts}
            self._disk.put(self._events, json.dumps(record).encode() + b"\n")

    def open_log(self, index: int, header: str) -> None:
        """Begin a lifetime in the worker's log file, to which restarts and later runs append."""
        if self._log_dir is None:
            return
        if index not in self._logs:
            self._logs[index] = self._open(self._log_dir / f"worker-{index}.log", "--log-dir")
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._disk.put(self._logs[index], f"=== {now} {header}\n".encode())

    def close(self, timeout: float | None) -> bool:
        """Write everything out; False if readers did not take it within ``timeout`` seconds (None: wait for them)."""
        self._unfold()
        if written := self._disk.close(timeout) & self._terminal.close(timeout):
            for fd in self._files:
                os.close(fd)
            self._files.clear()
        return written

    def _show(self, worker: Worker, lines: Sequence[bytes], *, error: bool) -> None:
        fd = _STDERR if error else _STDOUT
        if not self._folds[fd]:
            start = prefix(worker.index, coloured=self._coloured[fd])
            self._terminal.put(fd, b"".join(render(start, line) for line in lines))
            return
        for line in lines:
            self._folder.add(worker.index, fd, line)
        if len(self._folder) > _MOST_KEPT:
            self._unfold()
        elif self._unfolding is None:
            self._unfolding = self._loop.call_later(_FOLD_WITHIN, self._unfold)

    def _unfold(self) -> None:
        """Show the lines that are kept."""
        if self._unfolding is not None:
            self._unfolding.cancel()
            self._unfolding = None
        for shared in self._folder.take():
            start = prefix_of_several(shared.workers, coloured=self._coloured[shared.fd])
            self._terminal.put(shared.fd, render(start, shared.line))

    def _open(self, path: Path, option: str) -> int:
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(f"{option} {path}: {error.strerror}: give a path that can be written") from None
        self._files.append(fd)
        return fd

    def _room_from_thread(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(self._room)

    def _room(self) -> None:
        paused, self._paused = self._paused, []
        for stream in paused:
            stream.resume()


def outcome(record: WorkerRecord) -> str:
    """How the slot's newest lifetime ended, in words."""
    match record.phase:
        case WorkerPhase.DONE:
            return "finished"
        case WorkerPhase.RETIRED if not record.cause:
            return "drained" if record.code == 0 else f"ended with the run ({describe_exit(record.code)})"
        case WorkerPhase.FAILED | WorkerPhase.RETIRED:
            return describe_exit(record.code) + (f" ({record.cause})" if record.cause else "")
        case _:
            return str(record.phase.value)


def table(policy: RestartPolicy, tails: Mapping[int, Sequence[bytes]], *, coloured: bool, width: int) -> str:
    """A table of all slots. ``tails``: the last stderr lines a slot, of which the very last is shown for failures."""
    from rich.console import Console as RichConsole  # noqa: PLC0415 - only the end of a run that had trouble needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    rows = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("worker", "starts", "outcome", "last line on stderr"):
        rows.add_column(name, no_wrap=True, overflow="ellipsis")
    for record in policy.records:
        last = next((line for line in reversed(tails.get(record.index, ())) if line.strip()), b"")
        shown = last.decode("utf-8", "replace").strip()[: width // 2] if record.phase is WorkerPhase.FAILED else ""
        style = "green" if record.phase is WorkerPhase.DONE else "red" if record.phase is WorkerPhase.FAILED else ""
        rows.add_row(str(record.index), str(record.starts), Text(outcome(record), style), Text(shown))
    text = io.StringIO()
    RichConsole(file=text, force_terminal=coloured, no_color=not coloured, width=width, highlight=False).print(rows)
    return text.getvalue()


def traceback_of(index: int, tail: Sequence[bytes]) -> str:
    """The last stderr lines of one worker, as it wrote them."""
    lines = "".join(line.decode("utf-8", "replace") + "\n" for line in tail)
    return f"the last lines of worker {index}:\n{lines}" if lines else f"worker {index} wrote nothing to stderr\n"
