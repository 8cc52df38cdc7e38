"""Workers under a real ``ftlib run``: where fencing, restarts and joins by the launcher are part of what is tested."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from ftlib.drain import TWIN

from .cluster import LIMIT, ROOT, Cluster, Worker
from .worker import Task

__all__ = ["IMPORTS", "LaunchedRun"]

IMPORTS = 120.0
"""Seconds until workers train that import torch themselves; three on an idle machine."""


class LaunchedRun(Cluster):
    """A ``Cluster`` whose workers the launcher starts. ``join`` is its business too."""

    def __init__(self, directory: Path, size: int, *options: str, restarts: int = 100, **task: Any) -> None:
        """Starts at once. ``options``: more of the command line's."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.workers = []
        self._common = dict(task)
        self._events = directory / "events.jsonl"
        self._offset = 0
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "PROCESS_TEST_TASK": json.dumps(task),
            "PROCESS_TEST_DIRECTORY": str(directory),
        }
        command = [sys.executable, "-m", "ftlib.launch.cli", "run", "-n", str(size), "--max-restarts", str(restarts)]
        command += ["--restart-delay", "0.2", "--events", str(self._events), *options, "-m", "tests.processes.worker"]
        with (directory / "run.out").open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def close(self) -> None:
        """End the launcher, which ends its workers. Idempotent."""
        for _ in range(2):  # the second one kills
            if self._process.poll() is None:
                self._process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(2 * TWIN)  # sooner it would be a twin of the first
        try:
            self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read(self) -> None:
        """Take in all news, of the launcher too."""
        with contextlib.suppress(FileNotFoundError), self._events.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                self._happened(json.loads(line))
        for worker in self.workers:
            worker.read()

    def _happened(self, event: dict[str, Any]) -> None:
        if event["event"] == "started":
            name = f"{event['worker']}-{event['pid']}"
            task = Task(name=name, log=str(self.directory / f"{name}.jsonl"), slot=event["worker"], **self._common)
            self.workers.append(Worker(task, event["pid"]))
        elif event["event"] == "ended":
            for worker in self.workers:
                if worker.pid == event["pid"] and worker.code is None:
                    worker.code, worker.ended = event["code"], event["t"]
