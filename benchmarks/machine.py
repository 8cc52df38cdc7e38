"""What this machine has to bear: what a worker and its children occupy, and foreign load."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from ftlib.launch.process import die_with_parent


@dataclass
class Footprint:
    """Sums over a worker and its children."""

    rss: float = 0.0
    """MB of resident memory; pages that processes share count for each."""
    threads: int = 0
    descriptors: int = 0
    ports: int = 0
    """Listening TCP sockets and bound UDP sockets."""
    processes: int = 0


def footprint(pid: int) -> Footprint:
    """As of now."""
    worker, found = psutil.Process(pid), Footprint()
    for process in [worker, *worker.children(recursive=True)]:
        found.rss += process.memory_info().rss / 1e6
        found.threads += process.num_threads()
        found.descriptors += process.num_fds()
        for held in process.net_connections("inet"):
            found.ports += held.status == psutil.CONN_LISTEN or (held.type.name == "SOCK_DGRAM" and not held.raddr)
        found.processes += 1
    return found


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time (user and system) of a process, and of its living children together."""
    worker = psutil.Process(pid)
    own = worker.cpu_times()
    children = [child.cpu_times() for child in worker.children(recursive=True)]
    return own.user + own.system, sum(times.user + times.system for times in children)


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that each want a whole core."""
    parent = os.getpid()
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            command = [sys.executable, "-S", "-c", "while True: pass"]
            loops.append(subprocess.Popen(command, preexec_fn=lambda: die_with_parent(parent)))  # noqa: PLW1509
        yield
    finally:
        for loop in loops:
            loop.kill()
        for loop in loops:
            loop.wait()
