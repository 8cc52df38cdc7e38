"""The test's end of a ``zygote``: asks it for processes, and hears of their ends. One may serve any number of tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ROOT", "End", "Nursery", "Stuck"]

ROOT = Path(__file__).resolve().parents[2]
_READY = 180.0
"""Seconds until it has imported everything; three on an idle machine."""
_LIMIT = 40.0
"""Seconds that anything else may take."""


class Stuck(AssertionError):
    """Something did not happen in time."""


class End(NamedTuple):
    """Of a process."""

    code: int
    """Exit code; negative: the signal."""
    t: float
    """CLOCK_MONOTONIC when it was reaped."""


class Nursery:
    """One zygote. Whoever starts a process asks for its end, too."""

    def __init__(self, directory: Path, *modules: str, zygote: str = "tests.processes.zygote") -> None:
        """Start it and wait until it is ready. ``zygote``: the module to run; ``modules``: more for it to prepare."""
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "zygote.out"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with theirs, self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", zygote, str(theirs.fileno()), *modules],
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._control = ours
        self._pids: list[int] = []
        self._ends: dict[int, End] = {}
        self._await_pid(_READY)

    def close(self) -> None:
        """End the zygote, and with it all that it started. Idempotent."""
        self._control.close()
        self._process.kill()  # an interpreter with torch takes a second to end by itself
        self._process.wait()

    def start(self, task: dict[str, Any], sockets: Sequence[socket.socket] = ()) -> int:
        """Fork a process for ``task``, which gets ``sockets``; its pid."""
        socket.send_fds(self._control, [json.dumps(task).encode()], [item.fileno() for item in sockets])
        pid = self._await_pid(_LIMIT)
        self._ends.pop(pid, None)  # of an earlier process with the same number
        return pid

    def end(self, pid: int) -> End | None:
        """How that process has ended, if it has."""
        self._control.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while data := self._control.recv(1 << 16):
                self._take(data)
        return self._ends.get(pid)

    def kill(self, pids: Iterable[int]) -> None:
        """SIGKILL to those of these that have not ended, and wait for their ends."""
        if self._process.poll() is not None:
            return  # they have ended with it
        left = {pid for pid in pids if self.end(pid) is None}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _LIMIT
        while left := {pid for pid in left if pid not in self._ends}:
            if time.monotonic() > deadline:
                raise Stuck(f"processes {sorted(left)} have not ended within {_LIMIT:g} s of SIGKILL")
            self._receive(deadline)

    def _await_pid(self, limit: float) -> int:
        deadline = time.monotonic() + limit
        while not self._pids:
            self._receive(deadline)
        return self._pids.pop(0)

    def _receive(self, deadline: float) -> None:
        self._control.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            data = self._control.recv(1 << 16)
        except TimeoutError:
            raise Stuck(f"the zygote does not answer: {self._output.read_text(errors='replace')}") from None
        if not data:
            raise Stuck(f"the zygote has ended: {self._output.read_text(errors='replace')}")
        self._take(data)

    def _take(self, data: bytes) -> None:
        told = json.loads(data)
        if "pid" in told:
            self._pids.append(told["pid"])
        else:
            self._ends[told["ended"]] = End(told["code"], told["t"])
