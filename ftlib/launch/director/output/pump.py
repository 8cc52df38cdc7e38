"""What becomes of the lines of workers and agents: log records for handlers, used by one thread; a file a worker.

The thread may be slow (a terminal that is paused, a handler that asks a server): agents get no credit then, and workers wait.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from consensus import CarefulLogger

from ....errors import ConfigError
from ...processes.output import render, write_all
from .panel import LaunchFacts, Stream, panel_on
from .streams import own_streams

logger = CarefulLogger("ftlib")

Factory = Callable[[], Iterable[logging.Handler]]
_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


@dataclass(frozen=True, slots=True)
class Source:
    """Who wrote something. ``local_rank`` None: the agent, or the command that leads to it."""

    hostname: str
    local_rank: int | None
    rank: int | None
    index: int
    """Which colour its lines have."""

    @property
    def name(self) -> str:
        """What stands in front of its lines."""
        return self.hostname if self.local_rank is None else f"{self.hostname}:{self.local_rank}"


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """Some lines, or some records, of one source."""

    source: Source
    stream: str
    """stdout, stderr or logging."""
    lines: Sequence[bytes] = ()
    records: Sequence[tuple[int, str, float, str]] = ()
    then: Callable[[], None] | None = None
    """Called on the thread once all of it was handled."""
    loud: bool = False
    """Whether stderr shows it even where lines are not shown."""

    @property
    def size(self) -> int:
        """How many lines or records."""
        return len(self.lines) + len(self.records)


class Pump:
    """One thread that handles entries in order."""

    def __init__(self, factory: Factory | None, log_dir: Path | None, *, live: bool, sole: bool = False) -> None:
        """``live``: the lines also go to this process's stdout and stderr. ``sole``: nobody else in this process writes
        there, so they go to the descriptors, and no buffer is left that the interpreter would fail to flush as it ends.
        """
        if log_dir is not None:
            try:
                log_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"log_dir {log_dir}: {error.strerror}: give a directory that can be written") from None
        self._factory = factory
        self._log_dir = log_dir
        self._live = live
        self._wanted = live or factory is not None or log_dir is not None
        self._handlers: list[logging.Handler] = []
        self._files: dict[str, IO[bytes]] = {}
        self._spoilt: set[str] = set()
        """Files of which it was said that they lose lines."""
        self._own = own_streams() if sole else None
        self._panel = panel_on(self._streams[1]) if live else None
        self._queue: queue.SimpleQueue[OutputEntry | LaunchFacts | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        """Lines and records of each source that are not handled; under the lock."""
        self._troubles: set[str] = set()
        self._ended = threading.Event()
        self._then: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="ftlib-logs", daemon=True)
        self._thread.start()

    def put(self, entry: OutputEntry) -> None:
        """Queue an entry. Where nobody wants lines it is handled at once."""
        if self._wanted or entry.loud:
            with self._lock:
                self._waiting[entry.source.name] += entry.size
            self._queue.put(entry)
        elif entry.then is not None:
            entry.then()

    @property
    def has_panel(self) -> bool:
        """Whether ``show`` shows anything."""
        return self._panel is not None

    def show(self, facts: LaunchFacts) -> None:
        """Show this below the lines, where that is a terminal."""
        if self._panel is not None:
            self._queue.put(facts)

    def close(self, then: Callable[[], None]) -> None:
        """No entry follows; the thread ends after those that wait, and calls ``then`` at last."""
        self._then = then
        self._queue.put(None)

    @property
    def ended(self) -> bool:
        """Whether everything was handled."""
        return self._ended.is_set()

    @property
    def busy(self) -> bool:
        """Whether lines wait to be handled."""
        with self._lock:
            return self._waiting.total() > 0

    def give_up(self) -> dict[str, int]:
        """Handle nothing more but what is being handled; returns how many lines of each source were not handled."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self._queue.put(None)
        with self._lock:
            return {name: count for name, count in self._waiting.items() if count}

    def warn(self, text: str) -> None:
        """Tell the user of trouble with the output. From any thread; it may block as long as nobody reads stderr."""
        if self._own is None:
            logger.warning("%s", text)
        elif self._own[1] is not None:
            self._own[1].write(f"[ftlib] {text}\n")

    @property
    def _streams(self) -> tuple[Stream | None, Stream | None]:
        """Stdout and stderr, as they are now."""
        return self._own or (sys.stdout, sys.stderr)

    def _run(self) -> None:
        try:
            self._pass_on()
        finally:
            self._ended.set()
            self._then()

    def _pass_on(self) -> None:
        if self._factory is not None:
            try:
                self._handlers = list(self._factory())
            except Exception:
                logger.exception("the factory of log handlers failed: there are none")
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, LaunchFacts):
                if self._panel is not None:
                    self._panel.update(entry)
            else:
                self._handle(entry)
                with self._lock:
                    self._waiting[entry.source.name] -= entry.size
                if entry.then is not None:
                    entry.then()
            if self._panel is not None and self._queue.empty():
                with self._going_on("the live view"):
                    self._panel.draw()
        if self._panel is not None:
            with self._going_on("the live view"):
                self._panel.erase()
        for handler in self._handlers:
            with contextlib.suppress(Exception):
                handler.close()
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()

    def _handle(self, entry: OutputEntry) -> None:
        if self._live or entry.loud:
            with self._going_on("the live view"):
                self._show(entry)
        if self._log_dir is not None:
            with self._going_on("log_dir"):
                self._write(entry)
        if self._handlers:
            with self._going_on("log handlers"):
                self._hand_on(entry)

    @contextlib.contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Whatever fails here must not end the thread: no line would be taken any more, and the workers would wait for ever."""
        try:
            yield
        except Exception:
            if what not in self._troubles:
                self._troubles.add(what)
                logger.exception("%s failed; further failures of it are not mentioned", what)

    def _hand_on(self, entry: OutputEntry) -> None:
        level = {"stdout": logging.INFO, "stderr": logging.ERROR}.get(entry.stream, logging.INFO)
        for line in entry.lines:
            self._emit(entry, level, "ftlib.launch", None, line.decode("utf-8", "replace"))
        for number, name, created, text in entry.records:
            self._emit(entry, number, name, created, text)

    def _emit(self, entry: OutputEntry, level: int, name: str, created: float | None, text: str) -> None:
        record = logging.LogRecord(name, level, "", 0, text, None, None)
        source = entry.source
        more = {"hostname": source.hostname, "local_rank": source.local_rank, "rank": source.rank, "stream": entry.stream}
        record.__dict__.update(more if created is None else {**more, "created": created, "msecs": created % 1 * 1000})
        for handler in list(self._handlers):
            try:
                if level >= handler.level:
                    handler.handle(record)
            except Exception:
                self._handlers.remove(handler)
                logger.exception("a log handler failed, and gets no more lines: %r", handler)

    def _show(self, entry: OutputEntry) -> None:
        stdout, stderr = self._streams
        stream = stdout if entry.stream == "stdout" and entry.source.local_rank is not None else stderr
        if stream is None:
            return
        name = f"[{entry.source.name}] "
        if self._panel is not None:
            self._panel.erase()
        with contextlib.suppress(OSError, ValueError):
            if stream.isatty():
                name = f"\x1b[{_COLOURS[entry.source.index % len(_COLOURS)]}m{name}\x1b[0m"
            start = name.encode()
            stream.write("".join(render(start, line).decode() for line in _lines(entry)))
            stream.flush()

    def _write(self, entry: OutputEntry) -> None:
        name = f"{entry.source.name.replace('/', '_').replace(':', '-')}.log"
        file = self._files.get(name)
        assert self._log_dir is not None
        what = "cannot be written"
        try:
            if file is None:
                file = self._files[name] = (self._log_dir / name).open("ab", buffering=0)
            what = "output is lost from here on"
            write_all(file.fileno(), b"".join(line + b"\n" for line in _lines(entry)))
        except OSError as error:
            if name not in self._spoilt:
                self._spoilt.add(name)
                self.warn(f"log_dir: {name}: {what}: {error.strerror}")


def _lines(entry: OutputEntry) -> Sequence[bytes]:
    if not entry.records:
        return entry.lines
    return [
        line.encode("utf-8", "replace")
        for level, name, created, text in entry.records
        for line in f"{_time(created)} {logging.getLevelName(level)} {name}: {text}".split("\n")
    ]


def _time(created: float) -> str:
    try:
        return datetime.fromtimestamp(created, UTC).strftime("%H:%M:%S.%f")[:-3]
    except (OSError, OverflowError, ValueError):  # a worker may give its records any time
        return "--:--:--.---"
