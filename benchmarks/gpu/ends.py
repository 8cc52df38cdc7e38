"""The end of a process with a CUDA context: its agent tells its death; the kernel of the system closes its sockets.

A victim holds 1 GB of the device, and a kernel of its own spins there. It also has a connection to this process, whose end
shows when its sockets are closed, and so which of both comes first.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from typing import Any

import torch

from benchmarks.failures.faults import COMES_UP, all_after, come_up, newest_epoch, pause
from benchmarks.gpu.stand import Bench
from benchmarks.report import spread
from ftlib import FTLib
from tests.harness.cluster import Cluster, Worker
from tests.harness.worker import Lines

ROWS = {"a process with a context and a spinning kernel is killed: its death is told, its sockets are closed": ""}
"""What is measured, and the bars, where it cannot be."""

REPETITIONS = 8
CYCLES = 4 * 10**9
"""Of the kernel that spins: some two seconds."""
MEMORY = 1 << 30
SURVIVORS = 2
TOLD = ("proof", "propose", "freeze asked")
"""Marks (see ``moments.Tracer``), the first of which says that a survivor's agent knows."""


class Mortal:
    """A victim's habit: it has a connection to whoever watches, memory, and a kernel that spins."""

    def __init__(self, _ft: FTLib, lines: Lines, port: int, device: str) -> None:
        self._line = socket.create_connection(("127.0.0.1", port))
        self._stream = torch.cuda.Stream(device) if device != "cpu" else None
        self._memory = torch.ones(MEMORY if self._stream else 1, dtype=torch.uint8, device=device)
        lines.write(event="mortal")

    def __call__(self) -> None:
        """Before a call: begin another kernel if the last one has ended."""
        if self._stream is not None and self._stream.query():
            with torch.cuda.stream(self._stream):
                torch.cuda._sleep(CYCLES)  # noqa: SLF001 - a kernel that does nothing but take time


def measure(bench: Bench) -> None:
    """Rows."""
    stand, found = bench.stand, dict[str, list[float]]()
    settings = {"framework": "gloo"}
    task: dict[str, Any] = {"sizes": [bench.args.elements], "fill": False, "digest": False, "device": stand.device}
    with socket.create_server(("127.0.0.1", 0)) as listener, Cluster(bench.directory, bench.nursery, **task) as cluster:
        survivors = cluster.found(SURVIVORS, trace=True, settings=settings)
        come_up(cluster, SURVIVORS)
        for number in range(REPETITIONS):
            if number and bench.over:
                break
            habit = ["benchmarks.gpu.ends:Mortal", listener.getsockname()[1], stand.device]
            victim = cluster.join(habit=habit, settings=settings)
            cluster.training(SURVIVORS + 1, COMES_UP)
            line, _ = listener.accept()
            with line:
                time.sleep(0.5)  # past what the joining left behind
                for name, seconds in _end(cluster, victim, survivors, line).items():
                    found.setdefault(name, []).append(seconds)
            cluster.training(SURVIVORS, COMES_UP)
    what = "a process with a context and a spinning kernel is killed" if stand.real else "a process is killed"
    for text, name in (
        ("its death is told to the others' agents", "told"),
        ("its sockets are closed", "closed"),
        ("the kernel calls it ended", "ended"),
        ("the others' next average", "average"),
    ):
        times = found.get(name, [])
        bench.report.row(f"{what}, {len(times)} times: {text}", spread(times) if times else "not measured: nobody said so")


def _end(cluster: Cluster, victim: Worker, survivors: list[Worker], line: socket.socket) -> dict[str, float]:
    """Kill it; seconds until each thing has happened."""
    epoch, watcher = newest_epoch(survivors), os.pidfd_open(victim.pid)
    poll = select.epoll()
    poll.register(line.fileno(), select.EPOLLIN)
    poll.register(watcher, select.EPOLLIN)
    seen: dict[int, float] = {}
    try:
        at = victim.killed = victim.signal(signal.SIGKILL)
        while len(seen) < 2 and time.monotonic() < at + COMES_UP:
            for descriptor, _ in poll.poll(1.0):
                seen[descriptor] = time.monotonic() - at
                poll.unregister(descriptor)
    finally:
        poll.close()
        os.close(watcher)
    cluster.until("the others average without it", lambda: all_after(survivors, at, epoch))
    found = {"closed": seen.get(line.fileno()), "ended": seen.get(watcher), "average": pause(survivors, at, epoch)}
    marks = (mark for worker in survivors for call in worker.calls for mark in call.get("marks", []))
    found["told"] = min((when - at for label, when in marks if label in TOLD and when > at), default=None)
    return {name: seconds for name, seconds in found.items() if seconds is not None}
