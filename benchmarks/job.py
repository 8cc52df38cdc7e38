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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from ftlib.launch.process import die_with_parent
from tests.processes.cluster import ROOT, Stuck, bind

__all__ = ["Job"]


class Job:
    """The founders of one job, as a context manager that leaves nothing behind."""

    def __init__(self, arguments: Sequence[str], workers: int, settings: Mapping[str, Any] | None = None) -> None:
        """``arguments`` of Python, e.g. ``["-m", "benchmarks.fresh", "rest"]``; ``settings`` of ftlib, as FTLIB_* variables."""
        self._directory = tempfile.TemporaryDirectory(prefix="ftlib-job-")
        self.processes: list[subprocess.Popen[bytes]] = []
        pairs = [bind() for _ in range(workers)]
        common = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")} | {
            "FTLIB_JOB": f"benchmark-{secrets.token_hex(6)}",
            "FTLIB_INTRODUCERS": ",".join(_address(tcp) for _, tcp in pairs),
            "FTLIB_INITIAL_SIZE": str(workers),
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
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
