"""Workers that are started anew, each an interpreter of its own: what those forked from another cannot show.

They get their addresses as ``ftlib run`` would give them, write JSON lines to stdout, and end with this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from ftlib.common.processes import die_with_parent
from tests.harness.cluster import bind
from tests.harness.nursery import ROOT, Stuck


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


class Job:
    """The founders of one job, as a context manager that leaves nothing behind."""

    def __init__(
        self, arguments: Sequence[str], workers: int, settings: Mapping[str, Any] | None = None, root: Path = ROOT
    ) -> None:
        """``arguments`` of Python, e.g. ``["-m", "benchmarks", "rest"]``; ``settings`` of ftlib, as FTLIB_* variables.

        ``root``: of the checkout whose code they run.
        """
        self._directory = tempfile.TemporaryDirectory(prefix="ftlib-job-")
        self.processes: list[subprocess.Popen[bytes]] = []
        pairs = [bind() for _ in range(workers)]
        common = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")} | {
            "FTLIB_JOB": f"benchmark-{secrets.token_hex(6)}",
            "FTLIB_INTRODUCERS": ",".join(_address(tcp) for _, tcp in pairs),
            "FTLIB_INITIAL_SIZE": str(workers),
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
            **{f"FTLIB_{name.upper()}": str(value) for name, value in (settings or {}).items()},
        }
        parent = os.getpid()
        try:
            for index, (udp, tcp) in enumerate(pairs):
                sockets = [udp.fileno(), tcp.fileno()]
                own = {"FTLIB_NAME": f"worker {index}", "FTLIB_SOCKET_FDS": ",".join(map(str, sockets))}
                with self._path(index, "out").open("wb") as output, self._path(index, "err").open("wb") as errors:
                    process = subprocess.Popen(
                        [sys.executable, *arguments],
                        env={**common, **own},
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=errors,
                        pass_fds=sockets,
                        preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509
                    )
                self.processes.append(process)
        except BaseException:
            self.close()
            raise
        finally:
            for held in (held for pair in pairs for held in pair):
                held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill everything. Idempotent."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._directory.cleanup()

    def lines(self, index: int) -> list[dict[str, Any]]:
        """The JSON lines that one has written so far."""
        text = self._path(index, "out").read_text()
        whole = text[: text.rfind("\n") + 1]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def all_lines(self) -> list[dict[str, Any]]:
        """Those of all."""
        return [line for index in range(len(self.processes)) for line in self.lines(index)]

    def until(self, what: str, condition: Callable[[], bool], limit: float) -> None:
        """Wait; Stuck after ``limit`` seconds, or as soon as a worker failed."""
        deadline = time.monotonic() + limit
        while not condition():
            failed = [index for index, process in enumerate(self.processes) if process.poll()]
            if failed:
                raise Stuck(f"worker {failed[0]}: exit code {self.processes[failed[0]].returncode}: {self._last(failed[0])}")
            if time.monotonic() > deadline:
                raise Stuck(f"not within {limit:g} s: {what}; worker 0 wrote: {self._last(0)}")
            time.sleep(0.05)  # between two looks at what they wrote

    def ended(self, limit: float) -> None:
        """Wait until all have ended well."""
        self.until("all workers end", lambda: all(process.poll() == 0 for process in self.processes), limit)

    def _path(self, index: int, kind: str) -> Path:
        return Path(self._directory.name) / f"{index}.{kind}"

    def _last(self, index: int) -> str:
        with contextlib.suppress(OSError):
            return self._path(index, "err").read_text(errors="replace").strip()[-1500:]
        return ""


def _address(listening: Any) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"
