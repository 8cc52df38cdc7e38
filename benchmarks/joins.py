"""One worker at a time joins a cluster of learners: begun when everybody is ready for it, followed step by step."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from benchmarks.faults import crew
from ftlib import ConfigError
from ftlib.settings.config import resolve
from tests.processes.cluster import Cluster, Worker
from tests.processes.learner import asked

__all__ = [
    "AFTER",
    "LIMIT",
    "Join",
    "Pipes",
    "begun",
    "capped",
    "counted",
    "equal",
    "event",
    "first_line",
    "learners",
    "ready",
    "resident",
    "watched",
]

AFTER = 10
"""Steps after the first contribution that belong to a join."""
LIMIT = 120.0
"""Seconds that anything may take: steps of seconds, and ten of them are waited for."""


@contextmanager
def learners(name: str, size: int, *, given: dict[str, Any] | None = None, **task: Any) -> Iterator[Cluster]:
    """So many that train; ``given``: of ``learner.Orders``."""
    with crew(name, size, program="tests.processes.learner:learn", given=given or {}, **task) as cluster:
        yield cluster


def capped(rate: float) -> dict[str, Any]:
    """The setting that lets a joiner receive so many bytes a second; nothing where there is none."""
    try:
        resolve({"recovery_bandwidth": rate})
    except ConfigError:
        return {}
    return {"recovery_bandwidth": rate}


# One join


def event(worker: Worker, name: str) -> float:
    """When it wrote that, 0 if it has not."""
    return next((float(line["t"]) for line in worker.events if line.get("event") == name), 0.0)


def ready(cluster: Cluster, given: dict[str, Any] | None = None) -> Worker:
    """Start a worker that has imported and built everything and waits before ``FTLib.init``."""
    joiner = cluster.join(given={**(given or {}), "hold": True})
    cluster.until(f"{joiner.task.name} is ready", lambda: event(joiner, "ready"), LIMIT)
    return joiner


def begun(cluster: Cluster, joiner: Worker) -> float:
    """Let it go on. CLOCK_MONOTONIC just before its ``FTLib.init``."""
    joiner.signal(signal.SIGUSR2)
    cluster.until(f"{joiner.task.name} starts", lambda: event(joiner, "starting"), LIMIT)
    return event(joiner, "starting")


def first_line(worker: Worker, joiner: Worker) -> dict[str, Any] | None:
    """The line of the first average at ``worker`` with ``joiner``'s gradients in it; others had its slot before."""
    since = event(joiner, "starting")
    return next((line for line in worker.calls if line["end"] > since and line["who"] >> joiner.task.slot & 1), None)


def counted(cluster: Cluster, survivors: Iterable[Worker], joiner: Worker, *, further: int = 0) -> tuple[float, int]:
    """Wait for the first average with the joiner's gradients and ``further`` steps at all survivors.

    Its end at the last of them (CLOCK_MONOTONIC), and its step.
    """
    workers = list(survivors)

    def enough() -> bool:
        lines = [first_line(worker, joiner) for worker in workers]
        return all(
            line is not None and worker.last["step"] >= line["step"] + further
            for line, worker in zip(lines, workers, strict=True)
        )

    cluster.until(f"{joiner.task.name} counts, and {further} steps more", enough, LIMIT)
    lines = [line for worker in workers if (line := first_line(worker, joiner)) is not None]
    assert len({line["step"] for line in lines}) == 1, "it counted in different steps"
    return max(float(line["end"]) for line in lines), int(lines[0]["step"])


# Steps


def durations(worker: Worker, first: int, last: int) -> dict[int, float]:
    """Seconds by step, of those whose number is within: from the end of the one before, logging included."""
    lines = {line["step"]: line["done"] for line in worker.calls}
    return {step: lines[step] - lines[step - 1] for step in range(first, last + 1) if step in lines and step - 1 in lines}


def longest(workers: Iterable[Worker], since: float, last: int) -> tuple[float, int]:
    """The longest step that ended after ``since``, up to the step ``last``, at any worker; and which it was."""
    found = []
    for worker in workers:
        first = next(line["step"] for line in worker.calls if line["done"] > since)
        found += [(seconds, step) for step, seconds in durations(worker, first, last).items()]
    return max(found)


def equal(cluster: Cluster, ahead: int = 4) -> int:
    """All hash their state after the same step; AssertionError if they differ. Bytes of state that the newest one received."""
    workers = cluster.alive()
    step = max(worker.last["step"] for worker in workers) + ahead
    asked(cluster.directory).write_text(str(step))

    def lines() -> list[dict[str, Any]]:
        return [line for worker in workers for line in worker.calls[-50:] if line["step"] == step]

    cluster.until(f"all are past step {step}", lambda: len(lines()) == len(workers), LIMIT)
    assert all("hash" in line for line in lines()), f"somebody has not read in time that the hash of step {step} is wanted"
    hashes = [line["hash"] for line in lines()]
    assert len(set(hashes)) == 1, f"states differ after step {step}: {hashes}"
    newest = max(workers, key=cluster.workers.index)
    return int(next(line["state_bytes"] for line in newest.calls[-50:] if line["step"] == step))


@dataclass(frozen=True)
class Join:
    """What one join did to the others. Seconds, bytes."""

    longest: float
    """The survivors' longest step from the joiner's ``FTLib.init`` until ``AFTER`` steps after it counted first."""
    usual: float
    """The survivors' median step from then on."""
    control: float
    """The longest step above the median before."""
    contributed: float
    """From ``FTLib.init`` to the end of the first average with its gradients in it, at the last survivor."""
    received: int
    text: str
    """All of it, and more."""

    @property
    def above(self) -> float:
        """What the longest step took more than the usual one."""
        return self.longest - self.usual


def watched(cluster: Cluster, joiner: Worker, *, undisturbed: int, further: int) -> Join:
    """Steps without a join, then ``joiner``, which is ready, and at last ``further`` steps; states are compared at the end."""
    survivors = [worker for worker in cluster.alive() if worker is not joiner]
    quiet = max(worker.last["step"] for worker in survivors)
    last = quiet + undisturbed
    cluster.until("undisturbed steps", lambda: all(worker.last["step"] >= last for worker in survivors), LIMIT)
    before = [value for worker in survivors for value in durations(worker, quiet + 2, last).values()]
    control = max(before) - statistics.median(before)
    start = begun(cluster, joiner)
    end, step = counted(cluster, survivors, joiner, further=further)
    slowest, which = longest(survivors, start, step + AFTER)
    after = [value for worker in survivors for value in durations(worker, step + 1, step + further).values()]
    usual = statistics.median(after)
    received = equal(cluster, 2 if usual > 1.0 else 4)
    first = joiner.calls[0]
    met, registered = event(joiner, "init") - start, event(joiner, "calling") - start
    text = (
        f"longest {slowest * 1e3:.1f} ms (step {which}), usual {usual * 1e3:.1f} ms, control {control * 1e3:+.1f} ms; "
        f"since init: met {met:.3f} s, registered {registered:.3f} s, first call ended {first['end'] - start:.3f} s "
        f"(step {first['step']}), counted {end - start:.3f} s (step {step}); {received / 1e6:.1f} MB"
    )
    return Join(slowest, usual, control, end - start, received, text)


# Processes from outside


def resident(worker: Worker) -> float:
    """MB of resident memory, its children (the agent) included."""
    process, found = psutil.Process(worker.pid), 0
    for each in [process, *process.children(recursive=True)]:
        found += each.memory_info().rss
    return found / 1e6


class Pipes:
    """TCP connections from one process to the control addresses of others, as the kernel counts them; look often."""

    def __init__(self, pid: int, others: Iterable[Worker]) -> None:
        self._pid = pid
        self._owners = {worker.address.rpartition(":")[2]: worker for worker in others}
        self._received: dict[tuple[str, str], int] = {}

    def look(self) -> dict[Worker, int]:
        """Who is connected now, and what came from each so far by connections that are open."""
        ports = " or ".join(f"dport = :{port}" for port in self._owners)
        command = ["ss", "-tinpHO", "state", "established", f"( {ports} )"]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        now: dict[Worker, int] = {}
        for line in text.splitlines():
            if f"pid={self._pid}," not in line:
                continue
            _, _, ours, theirs = line.split()[:4]
            got = re.search(r"bytes_received:(\d+)", line)
            count = int(got[1]) if got else 0
            self._received[ours, theirs] = max(count, self._received.get((ours, theirs), 0))
            owner = self._owners[theirs.rpartition(":")[2]]
            now[owner] = now.get(owner, 0) + count
        return now

    @property
    def received(self) -> int:
        """Bytes by all connections ever seen, as of the last look at each."""
        return sum(self._received.values())
