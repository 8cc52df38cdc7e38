"""Callers under way: their processes, what they print, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.program import ROOT, clean

LIMIT = 90.0
"""Seconds that anything may take."""


def rounds(wanted: int, seconds: float = 140.0) -> Iterator[int]:
    """So many, or as many as begin within ``seconds``: a row ends within three minutes. Says so where they are fewer."""
    began = time.monotonic()
    for number in range(wanted):
        if time.monotonic() - began > seconds:
            print(f"  after {seconds:g} s: {number} of {wanted} times", file=sys.stderr)
            return
        yield number


class Called:
    """One process, and the lines that it prints, with the times of their arrival."""

    def __init__(
        self, command: Sequence[object], cwd: Path, prefix: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.began = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            [*prefix, *map(str, command)],
            cwd=cwd,
            env=clean(OMP_NUM_THREADS="1") if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line))

    def until(self, word: str, count: int = 1, limit: float = LIMIT) -> list[tuple[float, str]]:
        """The lines with ``word``, once there are so many; TimeoutError, with what was printed, if there are not."""
        deadline = time.monotonic() + limit
        while len(found := [line for line in list(self.lines) if word in line[1]]) < count:
            if time.monotonic() > deadline or (self.process.poll() is not None and not self._reader.is_alive()):
                raise TimeoutError(f"{len(found)} of {count} lines with {word!r}: {''.join(t for _, t in self.lines)[-1500:]}")
            time.sleep(0.001)
        return found

    def end(self) -> None:
        """Kill it; what it leaves is its own affair."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(5.0)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder; at the end no process whose number stands there in a file ``pids-*`` is left."""
    path = Path(tempfile.mkdtemp(prefix="ftlib-launching-"))
    try:
        yield path
    finally:
        for pid in family(path):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(path, ignore_errors=True)


def family(path: Path) -> list[int]:
    """All processes that workers told of."""
    return [int(pid) for file in path.glob("pids-*") for pid in file.read_text().split()]


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def gone(pids: Sequence[int], since: float, limit: float) -> tuple[float, int]:
    """Seconds from ``since`` until all are gone, and how many are left after ``limit``."""
    while left := sum(map(lives, pids)):
        if time.monotonic() - since > limit:
            return time.monotonic() - since, left
        time.sleep(0.002)
    return time.monotonic() - since, 0


def wait_for(path: Path, pattern: str, count: int) -> None:
    """Until there are so many files."""
    deadline = time.monotonic() + LIMIT
    while len(list(path.glob(pattern))) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(list(path.glob(pattern)))} of {count} files {pattern}")
        time.sleep(0.002)


def caller(
    system: str, function: str, settings: Mapping[str, Any], *arguments: object, python: str = sys.executable
) -> list[str]:
    """The command of a caller of functions."""
    return [python, "-m", "benchmarks.launching.caller", system, function, json.dumps(settings), *map(str, arguments)]


def script(kind: str, workers: int, function: str, *arguments: object, restarts: int = 0) -> list[str]:
    """The command of a launcher of scripts: ``run`` or ``torchrun``."""
    work = [str(ROOT / "benchmarks" / "launching" / "work.py"), function, *map(str, arguments)]
    if kind == "torchrun":
        options = ["--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}"]
        return [sys.executable, "-m", "torch.distributed.run", *options, *work]
    return [sys.executable, "-m", "ftlib.launch", "-n", str(workers), "--max-restarts", str(restarts), *work]


def commands(peer: str | None, workers: int, function: str, *arguments: object) -> dict[str, list[str]]:
    """The same by every system that is here: of function callers and of script launchers."""
    local = {"workers_per_host": workers}
    found = {
        "ftlib run": script("run", workers, function, *arguments),
        "Launcher": caller("ftlib", function, {**local, "transport": "local"}, *arguments),
        "torchrun": script("torchrun", workers, function, *arguments),
        "mp.spawn": caller("spawn", function, local, *arguments),
    }
    if peer is not None:
        found["torchrunx"] = caller("torchrunx", function, local, *arguments, python=peer)
    return found


def first_lines(command: Sequence[str], workers: int, path: Path, environment: Mapping[str, str] | None = None) -> float:
    """Seconds from the start of a launcher to the last worker's first line."""
    called = Called(command, path, environment=environment)
    try:
        wait_for(path, "ready-*", workers)  # not the lines: torchrunx shows those of its first worker alone
        return max(float(file.read_text()) for file in path.glob("ready-*")) - called.began
    finally:
        called.end()
