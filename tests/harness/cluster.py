"""Workers as processes of a test or benchmark: start, signal, watch, and clean up. Every wait has a deadline.

The workers come from a ``nursery``. They find each other by introducers on loopback, like workers on several hosts would;
their addresses are bound here beforehand and handed over, as ``ftlib run`` does it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from .basics import TIMEOUT, Tail, bind
from .nursery import Nursery, Stuck
from .worker import SLOTS, Task

LIMIT = TIMEOUT
"""Seconds that anything may take."""
_TOLD = 3_000
"""Characters of each worker's log that a failure shows."""


def load() -> str:
    """The machine's load, for reports."""
    return "load " + " ".join(f"{value:.1f}" for value in os.getloadavg())


class Process(ABC):
    """One lifetime, and the JSON lines that it writes."""

    ENDING: tuple[int, ...] = (signal.SIGKILL, signal.SIGTERM)
    """Whoever was sent one of these does not count as alive any more."""

    def __init__(self, name: str, log: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.code: int | None = None
        """Exit code (negative: the signal) once reaped."""
        self.ended = 0.0
        self.killed = 0.0
        """When a signal that ends it was sent."""
        self._output = Path(log + ".out")
        self._log = Tail(Path(log))

    @property
    def alive(self) -> bool:
        """Whether it runs and nothing was sent to end it."""
        return self.code is None and not self.killed

    def read(self) -> None:
        """Take in what it wrote since the last time."""
        for line in self._log.read():
            self.take(line)

    @abstractmethod
    def take(self, line: dict[str, Any]) -> None:
        """It wrote that."""

    def signal(self, number: int) -> float:
        """Send a signal; CLOCK_MONOTONIC just before."""
        began = time.monotonic()
        if number in self.ENDING:
            self.killed = began
        os.kill(self.pid, number)
        return began

    def output(self) -> str:
        """What it printed and logged."""
        with contextlib.suppress(FileNotFoundError):
            return self._output.read_text(errors="replace")
        return ""


class Worker(Process):
    """One of a cluster."""

    def __init__(self, task: Task, pid: int) -> None:
        super().__init__(task.name, task.log, pid)
        self.task = task
        self.calls: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.address = ""

    def __repr__(self) -> str:
        where = f"step {self.last.get('step')} epoch {self.last.get('epoch')} size {self.last.get('size')}"
        return f"<{self.name} pid {self.pid} code {self.code} {where}>"

    @property
    def last(self) -> dict[str, Any]:
        """The newest call's line, empty before the first."""
        return self.calls[-1] if self.calls else {}

    def take(self, line: dict[str, Any]) -> None:
        """A call's or an event's."""
        (self.calls if "step" in line else self.events).append(line)
        self.address = line.get("address", self.address)

    def kill(self) -> float:
        """SIGKILL."""
        return self.signal(signal.SIGKILL)


P = TypeVar("P", bound=Process)


class Watched(ABC, Generic[P]):
    """Processes from a nursery: what is new of them, and waiting for it."""

    POLL = 0.01
    """Seconds between two looks."""

    def __init__(self, directory: Path, nursery: Nursery) -> None:
        self.directory = directory
        self._nursery = nursery

    @property
    @abstractmethod
    def everybody(self) -> list[P]:
        """Those that have ended, too."""

    def alive(self) -> list[P]:
        """Those that run and that nobody has asked to end."""
        self.read()
        return [process for process in self.everybody if process.alive]

    def read(self) -> None:
        """Take in all news."""
        self._hear()  # first: of whoever is known to have ended all lines are here
        for process in self.everybody:
            if process.code is None or process.ended > time.monotonic() - 60:
                process.read()

    def until(self, what: str, condition: Callable[[], Any], limit: float = LIMIT, poll: float = 0.0) -> Any:
        """Wait until ``condition()`` is true and return it; ``Stuck`` with everybody's stacks if it takes too long."""
        deadline = time.monotonic() + limit
        while True:
            self.read()
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                # Of those that have ended by themselves, too: their last words may be the reason.
                left = [process for process in self.everybody if process.code != 0 and not process.killed]
                said = (f"{process!r}: {process.output()[-_TOLD:] or 'it has not said anything'}" for process in left)
                state = "\n  ".join(said)
                self.dump()
                raise Stuck(f"not within {limit:g} s: {what}\n  {state}\n{self.directory}")
            time.sleep(poll or self.POLL)

    def dump(self) -> None:
        """All threads' stacks of all, into their ``.out`` files."""
        for process in self.everybody:
            if process.code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
        time.sleep(0.3)  # a process that hangs in the kernel never says that it is done

    def _end_all(self) -> None:
        self._nursery.kill(process.pid for process in self.everybody if process.code is None)
        self._hear()

    def _hear(self) -> None:
        for process in self.everybody:
            if process.code is None and (end := self._nursery.end(process.pid)):
                process.code, process.ended = end


class Cluster(Watched[Worker]):
    """The workers of one job. A context manager that leaves nothing behind."""

    def __init__(self, directory: Path, nursery: Nursery | None = None, **task: Any) -> None:
        """``nursery``: where its workers come from, by default one of its own. ``task``: fields of ``Task`` common to all."""
        directory.mkdir(parents=True, exist_ok=True)
        self.workers: list[Worker] = []
        self._common = dict(task)
        self._settings = dict(self._common.pop("settings", {}))
        self._settings.setdefault("job", f"test-{secrets.token_hex(6)}")
        self._settings.setdefault("secret", secrets.token_hex(16))
        program = str(self._common.get("program", "")).partition(":")[0]
        self._owned = nursery is None
        super().__init__(directory, nursery or Nursery(directory, *filter(None, [program])))

    @property
    def everybody(self) -> list[Worker]:
        """All workers."""
        return self.workers

    @property
    def secret(self) -> str:
        """What its workers share."""
        return str(self._settings["secret"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything. Idempotent."""
        self._end_all()
        if self._owned:
            self._nursery.close()

    def clear(self, directory: Path, **settings: Any) -> None:
        """Kill all workers and begin anew, with the same nursery, in ``directory``; another job, and these settings."""
        self._end_all()
        self.workers = []
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._settings |= {"job": f"test-{secrets.token_hex(6)}", **settings}

    # Starting

    def found(self, size: int, *, first: dict[str, Any] | None = None, **task: Any) -> list[Worker]:
        """Start ``size`` workers that found a cluster together; ``first``: what is special about the most senior one."""
        pairs = [bind() for _ in range(size)]
        addresses = [f"127.0.0.1:{pair[1].getsockname()[1]}" for pair in pairs]
        return [
            self._spawn(
                {"introducers": addresses, "initial_size": size, "bind": address},
                pair,
                **{**task, **((first or {}) if address == addresses[0] else {})},
            )
            for address, pair in zip(addresses, pairs, strict=True)
        ]

    def join(self, **task: Any) -> Worker:
        """Start a worker that joins through up to three members that are alive, the newest first. Where one is left, through
        those that are coming, too: it may be killed before it has named another one.

        At a port of its own: that of an introducer which has just died could make it the founder of another job.
        """
        members = [worker for worker in self.alive() if worker.calls]
        assert members, "nobody to join"
        coming = [worker for worker in self.alive() if worker.address and not worker.calls] if len(members) == 1 else []
        addresses = [worker.address for worker in (*coming, *members)[-3:]]
        return self._spawn({"introducers": addresses, "bind": "127.0.0.1:0"}, **task)

    def _spawn(self, settings: dict[str, Any], pair: tuple[socket.socket, ...] = (), /, **more: Any) -> Worker:
        number = len(self.workers)
        name = f"w{number}"
        values = {**self._common, **more}
        values["settings"] = {**self._settings, **settings, **more.get("settings", {})}
        task = Task(name=name, log=str(self.directory / f"{name}.jsonl"), slot=self._free_slot(), **values)
        worker = Worker(task, self._nursery.start(dataclasses.asdict(task), pair))
        self.workers.append(worker)
        for item in pair:
            item.close()
        return worker

    def _free_slot(self) -> int:
        recent = {worker.task.slot for worker in self.workers[-SLOTS // 2 :]}
        recent |= {worker.task.slot for worker in self.workers if worker.code is None}
        start = len(self.workers)
        return next(slot for slot in ((start + i) % SLOTS for i in range(SLOTS)) if slot not in recent)

    # Watching

    def training(self, size: int | None = None, limit: float = LIMIT) -> None:
        """Wait until all live workers average together, in a group of ``size`` (default: all that live)."""

        def together() -> bool:
            alive = self.alive()
            wanted = len(alive) if size is None else size
            mask = sum(1 << worker.task.slot for worker in alive)
            return len(alive) == wanted and all(
                worker.last.get("size") == wanted and worker.last.get("who", mask) == mask for worker in alive
            )

        self.until(f"{size or 'all'} workers train together", together, limit)

    def advanced(self, limit: float = LIMIT) -> None:
        """Wait until every live worker has finished a call more."""
        before = {worker.pid: len(worker.calls) for worker in self.alive()}
        self.until("everybody finishes a call", lambda: self._all_beyond(before), limit)

    def _all_beyond(self, before: dict[int, int]) -> bool:
        return all(len(worker.calls) > before[worker.pid] for worker in self.workers if worker.alive and worker.pid in before)

    def drain(self, limit: float = LIMIT) -> None:
        """SIGTERM to all, and wait until they have ended."""
        for worker in self.alive():
            worker.signal(signal.SIGTERM)
        self.until("all workers drain", lambda: all(worker.code is not None for worker in self.workers), limit)
        for worker in self.workers:
            worker.read()

    def faults(self) -> Iterator[str]:
        """Whatever no worker may ever do."""
        for worker in self.workers:
            for event in worker.events:
                if event.get("event") in ("error", "status"):
                    yield f"{worker.task.name}: {event}"
            if worker.code not in (None, 0, -signal.SIGKILL):
                yield f"{worker.task.name}: exit code {worker.code}"
