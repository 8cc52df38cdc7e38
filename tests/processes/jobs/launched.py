"""Workers under a real ``ftlib run``: where fencing, restarts and joins by the launcher are part of what is tested."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from typing import Any

from ftlib.common.processes import TWIN
from tests.harness.basics import Tail
from tests.harness.cluster import LIMIT, Cluster, Worker
from tests.harness.nursery import Nursery, Stuck
from tests.harness.program import Program, clean, ftlib_run
from tests.harness.worker import Task


class LaunchedRun(Cluster):
    """A ``Cluster`` whose workers the launcher starts. ``join`` is its business too."""

    def __init__(
        self, directory: Path, size: int, *options: str, nursery: Nursery | None = None, restarts: int = 100, **task: Any
    ) -> None:
        """Starts at once. ``options``: more of the command line's. ``nursery``: where the launcher comes from, as always."""
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.workers = []
        self._common = dict(task)
        events = directory / "events.jsonl"
        self._events = Tail(events)
        self._owned = nursery is None
        self._nursery = nursery or Nursery(directory)
        task["settings"] = {**self._nursery.settings, **task.get("settings", {})}
        settings = {"PROCESS_TEST_TASK": json.dumps(task), "PROCESS_TEST_DIRECTORY": str(directory)}
        command = ftlib_run("-n", size, "--max-restarts", restarts, "--restart-delay", 0.2, "--events", events, *options)
        self._program = Program(self._nursery, directory, *command, "-m", "tests.harness.worker", env=clean(**settings))

    @property
    def said(self) -> str:
        """By the launcher."""
        return self._program.stderr

    def close(self) -> None:
        """End the launcher, which ends its workers. Idempotent."""
        for _ in range(2):  # the second one kills
            self._program.send_signal(signal.SIGTERM)
            with contextlib.suppress(Stuck):
                self._program.wait(2 * TWIN)  # sooner it would be a twin of the first
        with contextlib.suppress(Stuck):
            self._program.wait(LIMIT)
        self._program.kill()
        if self._owned:
            self._nursery.close()

    def read(self) -> None:
        """Take in all news, of the launcher too."""
        for event in self._events.read():
            self._happened(event)
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
