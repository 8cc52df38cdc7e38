"""The test's end of a ``zygote``: asks it for processes, and hears of their ends. One may serve any number of tests."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

ROOT = Path(__file__).resolve().parents[2]
_READY = 180.0
"""Seconds until it has imported everything; three on an idle machine."""
_LIMIT = 120.0
"""Seconds that anything else may take."""
_WORKER = "tests.harness.worker"


class Stuck(AssertionError):
    """Something did not happen in time."""


class End(NamedTuple):
    """Of a process."""

    code: int
    """Exit code; negative: the signal."""
    t: float
    """CLOCK_MONOTONIC when it was reaped."""


class Nursery:
    """A connection to a zygote. Whoever starts a process asks for its end, too."""

    def __init__(self, directory: Path, *modules: str, settings: dict[str, Any] | None = None) -> None:
        """Wait until the zygote of ``directory`` is ready. The first to ask starts it; ``modules``: for it to prepare.

        ``settings``: of ftlib, for all processes, unless they have others of their own.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "zygote.out"
        self._pids: list[int] = []
        self._ends: dict[int, End] = {}
        self._given = dict(settings or {})
        self.settings = dict(self._given)
        """See ``settle``."""
        with (directory / "zygote.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._control = self._connected(directory / "zygote", modules)
        self._await_pid(_READY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that was started here; the zygote ends with the last one who uses it. Idempotent."""
        self._control.close()

    def start(self, task: dict[str, Any], sockets: Sequence[socket.socket] = (), module: str = _WORKER) -> int:
        """Fork a process that runs ``module.run(task)`` and gets ``sockets``; its pid."""
        if "settings" in task:
            task = {**task, "settings": {**self.settings, **task["settings"]}}
        order = json.dumps({"module": module, "task": task}).encode()
        socket.send_fds(self._control, [order], [item.fileno() for item in sockets])
        pid = self._await_pid(_LIMIT)
        self._ends.pop(pid, None)  # of an earlier process with the same number
        return pid

    def settle(self, **settings: Any) -> None:
        """From now on processes have these settings of ftlib beside their own, which come first, and those given at first."""
        self.settings = {**self._given, **settings}

    def end(self, pid: int) -> End | None:
        """How that process has ended, if it has."""
        self._control.settimeout(0)
        with contextlib.suppress(BlockingIOError):
            while data := self._control.recv(1 << 16):
                self._take(data)
        return self._ends.get(pid)

    def kill(self, pids: Iterable[int]) -> None:
        """SIGKILL to those of these that have not ended, and wait for their ends."""
        left = {pid for pid in pids if self.end(pid) is None}
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + _LIMIT
        while left := {pid for pid in left if pid not in self._ends}:
            if time.monotonic() > deadline:
                raise Stuck(f"processes {sorted(left)} have not ended within {_LIMIT:g} s of SIGKILL")
            self._receive(deadline)

    def _connected(self, address: Path, modules: Sequence[str]) -> socket.socket:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(_READY)
        with contextlib.suppress(FileNotFoundError, ConnectionError):
            control.connect(str(address))
            if control.recv(1, socket.MSG_PEEK):  # else it has just ended, as nobody was left
                return control
        control.close()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
        environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with self._output.open("wb") as output:
            subprocess.run(
                [sys.executable, "-m", "tests.harness.zygote", str(address), _WORKER, *modules],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=_READY,
                check=True,
            )
        control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.connect(str(address))
        return control

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
