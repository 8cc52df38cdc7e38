"""How each system is started, what restarts its workers, and how one more joins."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.notes import Notes
from ftlib.common.processes import die_with_parent
from tests.harness.basics import free_ports

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 4
RESTART = 1.0
"""Seconds until a worker that died is started anew, by ``ftlib run`` as by this module."""


@dataclass(frozen=True)
class Kind:
    """One system with one choice of settings."""

    name: str
    package: str
    settings: str
    """As a reader is told them, and where they come from."""
    environment: dict[str, str] = field(default_factory=dict)
    lighthouse: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    joins: bool = True
    master: str = ""
    """The process without which it cannot go on, if there is one."""

    @property
    def program(self) -> str:
        """The module that its workers run."""
        return f"benchmarks.peers.programs.with_{self.package}"


KINDS = (
    Kind("ftlib", "ftlib", "defaults, ftlib run"),
    Kind(
        "ftlib, tuned",
        "ftlib",
        "stall_timeout 2 s, exclude_after 1 s, ftlib run",
        {"FTLIB_STALL_TIMEOUT": "2", "FTLIB_EXCLUDE_AFTER": "1"},
    ),
    Kind(
        "ftlib, file store",
        "ftlib",
        "consensus=shared_storage in a directory, ftlib run",
        {"FTLIB_CONSENSUS": "shared_storage"},
    ),
    Kind(
        "torchft",
        "torchft",
        "lighthouse of its README (join 10 s, tick 100 ms), time-outs of 30 s, a checkpoint each 25 steps",
        {"PEERS_TIMEOUT": "30"},
        ("--min_replicas=1", "--quorum_tick_ms=100", "--join_timeout_ms=10000"),
        master="lighthouse",
    ),
    Kind(
        "torchft, tuned",
        "torchft",
        "join 1 s, silence 1 s, tick 50 ms, time-outs of 5 s",
        {"PEERS_TIMEOUT": "5"},
        ("--min_replicas=1", "--quorum_tick_ms=50", "--join_timeout_ms=1000", "--heartbeat_timeout_ms=1000"),
        master="lighthouse",
    ),
    Kind(
        "torchft, tight",
        "torchft",
        "join 100 ms, silence 250 ms, tick 10 ms, time-outs of 1 s",
        {"PEERS_TIMEOUT": "1"},
        ("--min_replicas=1", "--quorum_tick_ms=10", "--join_timeout_ms=100", "--heartbeat_timeout_ms=250"),
        master="lighthouse",
    ),
    Kind(
        "hivemind",
        "hivemind",
        "matchmaking 3 s, averaging time-out 10 s: its quick start",
        {"PEERS_MATCHMAKING": "3", "PEERS_TIMEOUT": "10"},
    ),
    Kind(
        "DDP, torchrun",
        "ddp",
        "--max-restarts, a checkpoint each 25 steps, time-out of 10 s",
        {"PEERS_TIMEOUT": "10"},
        joins=False,
        master="torchrun",
    ),
)


class Running:
    """One system that trains, as a context manager that leaves nothing behind. Call ``tend`` again and again."""

    def __init__(self, kind: Kind, python: str, keep: bool) -> None:
        self.kind = kind
        self._keep = keep
        self._python = python
        self.folder = Path(tempfile.mkdtemp(prefix="peers-"))
        (self.folder / "notes").mkdir()
        (self.folder / "store").mkdir()
        self.notes = Notes(self.folder / "notes")
        self._mark = f"PEERS_FOLDER={self.folder}"
        self._own = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")},
            **kind.environment,
            "PEERS_FOLDER": str(self.folder),
            "PEERS_NOTES": str(self.folder / "notes"),
            "PEERS_MEETING": str(self.folder / "meeting"),
            "PEERS_CHECKPOINT": str(self.folder / "checkpoint"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        if kind.package == "ftlib":
            self._own |= {
                "FTLIB_JOB": self.folder.name,
                "FTLIB_SECRET": secrets.token_hex(32),
                "FTLIB_STORAGE": f"file://{self.folder}/store",
            }
            if kind.environment.get("FTLIB_CONSENSUS") is None:
                del self._own["FTLIB_STORAGE"]
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        """Those that are started anew here, by slot."""
        self._due: dict[int, float] = {}
        self.master: subprocess.Popen[bytes] | None = None
        self._launcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (port,) = free_ports(1)
        self._own["PEERS_PORT"] = str(port)
        match self.kind.package:
            case "ftlib":
                run = ["-m", "ftlib.cli.main", "run", "-n", str(WORKERS), "--max-restarts", "1000"]
                run += ["--job", self.folder.name, "-m", self.kind.program]
                self._launcher = self._spawn([sys.executable, *run], "launcher")
            case "ddp":
                self.master = self._torchrun()
            case _:
                if self.kind.lighthouse:
                    self._own["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
                    self.master = self._lighthouse()
                for slot in range(WORKERS):
                    self.add(slot)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        for child in (*self._workers.values(), self.master, self._launcher):
            if child is not None:
                child.wait()
        if not self._keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, slot: int) -> None:
        """A worker with this slot, which is started anew whenever it ends."""
        own = {"PEERS_SLOT": str(slot)}
        if self.kind.package == "ftlib":
            own |= {
                "FTLIB_WORKER_INDEX": str(slot),
                "FTLIB_NAME": f"worker {slot}",
                "FTLIB_BIND": f"127.0.0.1:{free_ports(1)[0]}",
            }
            own |= {} if "FTLIB_STORAGE" in self._own else {"FTLIB_INTRODUCERS": ",".join(self.notes.addresses())}
        self._workers[slot] = self._spawn([self._python, "-m", self.kind.program], f"worker-{slot}", own)

    def tend(self) -> None:
        """Start anew who ended ``RESTART`` seconds ago or longer."""
        now = time.monotonic()
        for slot, worker in list(self._workers.items()):
            if worker.poll() is not None and now >= self._due.setdefault(slot, now + RESTART):
                del self._due[slot]
                self.add(slot)

    def kill_master(self) -> None:
        """SIGKILL to the one process that the system depends on, which is then started anew, as an init system does that
        watches over it: what torchrun left of its workers is killed before.
        """
        assert self.master is not None
        self.master.kill()
        self.master.wait()
        if self.kind.package == "ddp":
            self._kill_all()
        time.sleep(RESTART)  # as long as a worker is away
        self.master = self._lighthouse() if self.kind.lighthouse else self._torchrun()

    def _kill_all(self) -> None:
        """All that has our mark in its environment, whoever started it."""
        for _ in range(3):
            for pid in self._marked():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)  # who was being started is found in the next pass

    def _torchrun(self) -> subprocess.Popen[bytes]:
        run = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORKERS}", "--max-restarts=1000"]
        run += ["--monitor-interval=0.1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{self._own['PEERS_PORT']}"]
        return self._spawn([*run, "-m", self.kind.program], "torchrun")

    def _lighthouse(self) -> subprocess.Popen[bytes]:
        program = str(Path(self._python).parent / "torchft_lighthouse")
        return self._spawn([program, f"--bind=127.0.0.1:{self._own['PEERS_PORT']}", *self.kind.lighthouse], "lighthouse")

    def _spawn(self, command: list[str], name: str, more: dict[str, Any] | None = None) -> subprocess.Popen[bytes]:
        parent = os.getpid()
        with (self.folder / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=self._own | (more or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - no thread here
            )

    def _marked(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found
