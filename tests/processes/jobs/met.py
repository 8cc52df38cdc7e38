"""``ftlib run --meet`` on several hosts: one launcher in each namespace of a ``Network``, none of which knows of the others."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ftlib.common.processes import TWIN
from tests.harness.basics import Tail, eventually
from tests.harness.network import Host
from tests.harness.nursery import Nursery, Stuck
from tests.harness.program import ROOT, Program, clean, ftlib_run

PORT = 7000
LIMIT = 120.0
SECRET = "the secret that all hosts know"

SCRIPT = f"""
import json, os, sys, time
sys.path.insert(0, {str(ROOT)!r})
import torch
from ftlib import FTLib

ft = FTLib.init(framework="gloo", exclude_after=6.0, rejoin=False)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
ft.register_state(model=model, optimizer=optimizer)
log = open(f"worker-{{os.environ['FTLIB_WORKER_INDEX']}}-{{os.getpid()}}.jsonl", "a", buffering=1)
while not ft.should_leave:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    if ft.allreduce_average(model):
        optimizer.step()
        print(json.dumps({{"t": time.monotonic(), "step": ft.step, "size": ft.size, "rank": ft.rank}}), file=log)
    time.sleep(0.01)
ft.close()
"""
"""Averages for ever, until it is asked to go."""


class Launcher:
    """One host's ``ftlib run``, and what its workers write."""

    def __init__(self, nursery: Nursery, directory: Path, host: Host, *options: object, script: str) -> None:
        directory.mkdir(parents=True)
        (directory / "train.py").write_text(script)
        self.host = host
        self.directory = directory
        self._tail = Tail(directory / "events.jsonl")
        self._events: list[dict[str, Any]] = []
        command = ftlib_run("--restart-delay", 0.2, "--events", "events.jsonl", *options, "train.py")
        env = clean(FTLIB_SECRET=SECRET, OMP_NUM_THREADS="1", **nursery_settings(nursery))
        self.program = Program(nursery, directory, *command, env=env, namespace=host.name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the launcher has told so far."""
        self._events += self._tail.read()
        return [event for event in self._events if event["event"] == kind]

    def pid(self, index: int) -> int:
        """Of the worker in that slot that was started last; 0: none yet."""
        return next((int(event["pid"]) for event in reversed(self.events("started")) if event["worker"] == index), 0)

    def lines(self, index: int) -> list[dict[str, Any]]:
        """What that worker has averaged."""
        path = self.directory / f"worker-{index}-{self.pid(index)}.jsonl"
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        return []

    def last(self, index: int) -> dict[str, Any]:
        """Its newest average; empty before the first."""
        return next(reversed(self.lines(index)), {})


class MetHosts:
    """A launcher on each of some hosts. A context manager: on exit all are ended, and their workers with them."""

    def __init__(self, nursery: Nursery, directory: Path, hosts: list[Host], *options: object, script: str = SCRIPT) -> None:
        """``options``: of ``ftlib run`` on every host."""
        self._nursery, self._directory, self._options, self._script = nursery, directory, options, script
        self._starts = 0
        self.launchers = [self._launch(host) for host in hosts]

    def _launch(self, host: Host) -> Launcher:
        self._starts += 1
        return Launcher(self._nursery, self._directory / f"{self._starts}", host, *self._options, script=self._script)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _ in range(2):
            for launcher in self.launchers:
                launcher.program.send_signal(signal.SIGTERM)
            time.sleep(2 * TWIN)  # sooner the second would be a twin of the first
        for launcher in self.launchers:
            with contextlib.suppress(Stuck):
                launcher.program.wait(LIMIT)
            launcher.program.kill()

    def again(self, number: int) -> Launcher:
        """Start the launcher of a host anew."""
        self.launchers[number] = self._launch(self.launchers[number].host)
        return self.launchers[number]

    def add(self, host: Host) -> Launcher:
        """Start a launcher on one more host."""
        self.launchers.append(self._launch(host))
        return self.launchers[-1]

    def until(self, what: str, condition: Callable[[], object], limit: float = LIMIT) -> float:
        """Seconds until ``condition`` held."""
        return eventually(condition, lambda: f"{what}\n{self.told()}", limit)

    def told(self) -> str:
        """What all launchers said."""
        return "\n".join(f"--- {each.host.name} ---\n{each.program.stderr[-3000:]}" for each in self.launchers)

    def training(self, size: int, since: float | None = None) -> float:
        """Wait until all workers of all living launchers average as one group of ``size``, after ``since``; when that was."""
        after = time.monotonic() if since is None else since
        workers = int(self._options[self._options.index("-n") + 1])  # type: ignore[call-overload]

        def together() -> bool:
            living = [each for each in self.launchers if each.program.returncode is None]
            lines = [each.last(index) for each in living for index in range(workers)]
            return all(line.get("size") == size and line["t"] > after for line in lines)

        self.until(f"all average in a group of {size}", together)
        return time.monotonic()


def nursery_settings(nursery: Nursery) -> dict[str, str]:
    """What workers inherit so that their agents come from the nursery."""
    return {f"FTLIB_{name.upper()}": str(value) for name, value in nursery.settings.items()}
