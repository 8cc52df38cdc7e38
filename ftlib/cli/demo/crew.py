"""The processes: a real ``ftlib run`` with four workers, and a fifth worker that is added by hand.

Nothing is left behind: the launcher ends all that it started, the fifth worker dies with this process, and so does the
launcher if this process is killed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...common.processes import die_with_parent
from .trainer import STEPS, STOP, Training

WORKERS = 4
"""Workers that the launcher starts. The added one is ``worker 4``."""
_RESTARTS = 6
_GRACE = 6.0
"""Seconds to drain: on a busy machine, ending an interpreter with torch takes two seconds by itself."""
_PACKAGE = Path(__file__).resolve().parents[3]


class Crew:
    """Starts and ends everything. Use from the main thread (the kernel ties the children's life to it)."""

    def __init__(self, directory: Path, job: str, training: Training) -> None:
        self._directory = directory
        self._job = job
        self._worker = ["-m", "ftlib.cli.demo.trainer", ".", *training.arguments()]
        self._secret = secrets.token_hex(32)
        self._launcher: subprocess.Popen[bytes] | None = None
        self.added: subprocess.Popen[bytes] | None = None
        """The added worker."""

    def start(self) -> None:
        """Start the launcher, which starts the workers."""
        options = ["-n", WORKERS, "--max-restarts", _RESTARTS, "--grace", _GRACE, "--job", self._job]
        files = ["--events", "events.jsonl", "--log-dir", "logs"]
        command = [sys.executable, "-m", "ftlib.cli.main", "run", *map(str, (*options, *files, *self._worker))]
        self._launcher = self._spawn(command, {}, "launcher.log")

    def add(self, introducers: Sequence[str]) -> int:
        """Start one more worker that no launcher knows, as one would on another machine; returns its pid."""
        facts = {
            "FTLIB_JOB": self._job,
            "FTLIB_INTRODUCERS": ",".join(introducers),
            "FTLIB_NAME": f"worker {WORKERS}",
            "FTLIB_WORKER_INDEX": str(WORKERS),
            "OMP_NUM_THREADS": "1",
            "PYTHONFAULTHANDLER": "1",
        }
        self.added = self._spawn([sys.executable, *self._worker], facts, f"logs/worker-{WORKERS}.log")
        return self.added.pid

    @property
    def code(self) -> int | None:
        """The launcher's exit code, None while it runs."""
        return None if self._launcher is None else self._launcher.poll()

    @property
    def over(self) -> bool:
        """Whether all processes have ended."""
        return all(child is None or child.poll() is not None for child in (self._launcher, self.added))

    def finish(self) -> None:
        """Ask the workers to stop after the same step."""
        (self._directory / STOP).touch()

    def end(self) -> None:
        """End all running processes: by SIGTERM, and after a few seconds by SIGKILL. Idempotent."""
        children = [child for child in (self.added, self._launcher) if child is not None and child.poll() is None]
        for child in children:
            child.send_signal(signal.SIGTERM)
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE + 2)
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()

    def left(self) -> list[int]:
        """Return the pids of this job's processes, found by their environment; empty once all have ended."""
        mark = f"FTLIB_JOB={self._job}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # another user's, or just gone
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def _spawn(self, command: list[str], facts: dict[str, str], log: str) -> subprocess.Popen[bytes]:
        # The user's own settings are left out: the demo is the same everywhere.
        env = {key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")}
        env["FTLIB_SECRET"] = self._secret  # else the launcher would draw one that the added worker does not know
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_PACKAGE), env.get("PYTHONPATH"))))
        parent = os.getpid()
        (self._directory / "logs").mkdir(exist_ok=True)
        with (self._directory / log).open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - this interpreter, arguments of this module
                command,
                cwd=self._directory,
                env=env | facts,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the others
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - two system calls, no lock
            )


def prepare(directory: Path) -> None:
    """Make ``directory`` and remove what an earlier demo left in it, and nothing else."""
    for name in (STEPS, "logs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    for pattern in (
        f"{STEPS}/worker-*.jsonl",
        "logs/worker-*.log",
        "events.jsonl",
        "launcher.log",
        STOP,
        "report.json",
        "demo.png",
    ):
        for old in directory.glob(pattern):
            old.unlink()
