"""Workers' output: split into lines, prefixed, written by one thread. Bytes, so that no output can break it.

A paused terminal (or ``| less``) blocks its writer. That must not be the loop that fences and restarts workers, so a thread
writes. The loop stops reading from the workers while much output waits: they then block on their own pipes, as they would
without a launcher.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_LINE = 64 * 1024
"""Bytes after which a line without end is cut."""

_COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)


class LineSplitter:
    """Chunks in, whole lines out (without their newline)."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that ``chunk`` completes."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        while len(rest) > MAX_LINE:
            lines.append(rest[:MAX_LINE])
            rest = rest[MAX_LINE:]
        self._rest = rest
        return lines

    def finish(self) -> list[bytes]:
        """The last line, if it had no newline."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []

    @property
    def progress(self) -> bytes:
        """The unfinished line, if carriage returns say that it is a progress bar; else empty."""
        return self._rest if b"\r" in self._rest else b""


@dataclass(slots=True)
class SharedLine:
    """A line, and the workers that wrote it."""

    fd: int
    line: bytes
    workers: list[int]


class Folder:
    """Keeps lines for a moment, and makes one of equal lines that different workers wrote. No worker's lines change places."""

    def __init__(self) -> None:
        self._kept: list[SharedLine] = []
        self._places: dict[tuple[int, bytes], list[int]] = {}
        """Where in ``_kept`` each line is."""
        self._newest: dict[int, int] = {}
        """The place of each worker's last line."""

    def add(self, worker: int, fd: int, line: bytes) -> None:
        """Keep a line."""
        places = self._places.setdefault((fd, line), [])
        nth = bisect.bisect_right(places, self._newest.get(worker, -1))
        if nth < len(places):
            place = places[nth]
            self._kept[place].workers.append(worker)
        else:
            place = len(self._kept)
            places.append(place)
            self._kept.append(SharedLine(fd, line, [worker]))
        self._newest[worker] = place

    def take(self) -> list[SharedLine]:
        """All that is kept, which is then not kept any more."""
        kept = self._kept
        self._kept, self._places, self._newest = [], {}, {}
        return kept

    def __len__(self) -> int:
        return len(self._kept)


def ranges(numbers: Iterable[int]) -> str:
    """``0-2, 5`` for 0, 1, 2 and 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def prefix_of_several(workers: Sequence[int], *, coloured: bool) -> bytes:
    """Return the prefix of a line that all these workers wrote."""
    if len(workers) == 1:
        return prefix(workers[0], coloured=coloured)
    text = f"[workers {ranges(workers)}]"
    return f"\x1b[1m{text}\x1b[0m ".encode() if coloured else f"{text} ".encode()


def prefix(index: int, *, coloured: bool) -> bytes:
    """Return the prefix of each line of worker ``index``."""
    text = f"[worker {index}]"
    return f"\x1b[{_COLOURS[index % len(_COLOURS)]}m{text}\x1b[0m ".encode() if coloured else f"{text} ".encode()


def render(start: bytes, line: bytes) -> bytes:
    """One line for the console: prefixed, without what a carriage return overwrote, invalid UTF-8 replaced."""
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return start + shown.decode("utf-8", "replace").encode() + b"\n"


class Outlets:
    """Descriptors that take bytes. One that has failed takes no more, which is said once on stderr."""

    def __init__(self) -> None:
        self._broken: set[int] = set()

    def write(self, fd: int, data: bytes) -> None:
        """Write it all, for as long as whoever reads takes; or lose it."""
        if fd in self._broken:
            return
        try:
            write_all(fd, data)
        except OSError as error:  # e.g. no reader, a full disk: the training is worth more than its output
            self._broken.add(fd)
            with contextlib.suppress(OSError):
                write_all(2, f"[ftlib] output is lost from here on: {_name(fd)}: {error.strerror}\n".encode())


class Writer:
    """Writes bytes to descriptors, in order, on a thread of its own. ``on_room`` is called on that thread."""

    def __init__(self, on_room: Callable[[], None], *, high: int = 4 << 20) -> None:
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._high = high
        self._on_room = on_room
        self._outlets = Outlets()  # owned by the thread
        self._thread = threading.Thread(target=self._run, name="ftlib-output", daemon=True)
        self._thread.start()

    def put(self, fd: int, data: bytes) -> None:
        """Queue ``data`` for ``fd``."""
        with self._lock:
            self._waiting += len(data)
        self._queue.put((fd, data))

    @property
    def full(self) -> bool:
        """True while so many bytes wait that reading should pause until ``on_room``."""
        with self._lock:
            return self._waiting > self._high

    def close(self, timeout: float | None) -> bool:
        """Write what is queued, then end; False if that took longer than ``timeout`` seconds (None: no limit)."""
        self._queue.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            fd, data = item
            self._outlets.write(fd, data)
            with self._lock:
                was_full = self._waiting > self._high
                self._waiting -= len(data)
                room = was_full and self._waiting <= self._high
            if room:
                self._on_room()


def _name(fd: int) -> str:
    try:
        return str(Path(f"/proc/self/fd/{fd}").readlink())
    except OSError:
        return f"descriptor {fd}"


def write_all(fd: int, data: bytes) -> None:
    """Write it all to a descriptor, blocking or not. No deadline: a reader may stand still, and threads wait for it."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # whoever shares it (ssh, a parent process) has made it non-blocking: it is full, not dead
            room = select.poll()
            room.register(fd, select.POLLOUT)
            room.poll()  # returns for a reader that leaves, too: the next write says so
