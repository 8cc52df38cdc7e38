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
    """The process with which its workers end, or without which they cannot go on, if there is one."""
    asked: bool = False
    """Whether it is played only where ``--only`` names it."""
    slow: dict[str, float] = field(default_factory=dict)
    """Faults which these settings take longer over than others are waited for, and seconds that they may take in one round."""

    @property
    def program(self) -> str:
        """The module that its workers run."""
        return f"benchmarks.peers.programs.with_{self.package}"


KINDS = (
    Kind("ftlib", "ftlib", "defaults, ftlib run, a checkpoint each 25 steps", master="ftlib run", slow={"wedge": 80.0}),
    Kind(
        "ftlib, tuned",
        "ftlib",
        "stall_timeout 2 s, exclude_after 1 s, ftlib run, a checkpoint each 25 steps",
        {"FTLIB_STALL_TIMEOUT": "2", "FTLIB_EXCLUDE_AFTER": "1"},
        master="ftlib run",
        asked=True,
    ),
    Kind(
        "ftlib, file store",
        "ftlib",
        "consensus=shared_storage in a directory, ftlib run, a checkpoint each 25 steps",
        {"FTLIB_CONSENSUS": "shared_storage"},
        master="ftlib run",
        slow={"wedge": 80.0},
    ),
    Kind(
        "torchft",
        "torchft",
        "lighthouse of its README (join 10 s, tick 100 ms), time-outs of 30 s, a checkpoint each 25 steps",
        {"PEERS_TIMEOUT": "30"},
        ("--min_replicas=1", "--quorum_tick_ms=100", "--join_timeout_ms=10000"),
        master="lighthouse",
        slow=dict.fromkeys(("kill", "stop", "wedge", "leave"), 50.0),
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
        "matchmaking 0.5 s, averaging time-out 5 s (with 3 s and 10 s, its quick start's, each step takes more than 3 s)",
        {"PEERS_MATCHMAKING": "0.5", "PEERS_TIMEOUT": "5"},
    ),
    Kind(
        "DDP, torchrun",
        "ddp",
        "--max-restarts, a checkpoint each 25 steps, time-out of 10 s, TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (with the default, "
        "addresses of the workers before stay in the store, and most restarts fail)",
        {"PEERS_TIMEOUT": "10", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        joins=False,
        master="torchrun",
        slow={"stop": 60.0, "wedge": 30.0},
    ),
)


def alive(pid: int) -> bool:
    """Whether that process is there, and no zombie."""
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


class Running:
    """One system that trains, as a context manager that leaves nothing behind. Call ``tend`` again and again."""

    def __init__(self, kind: Kind, python: str, digits: Path, keep: bool) -> None:
        self.kind = kind
        self._keep = keep
        self._python = python
        self.folder = Path(tempfile.mkdtemp(prefix="peers-"))
        (self.folder / "notes").mkdir()
        self.notes = Notes(self.folder / "notes")
        self._mark = f"PEERS_FOLDER={self.folder}"
        self._own = {
            **{key: value for key, value in os.environ.items() if not key.startswith("FTLIB_")},
            **kind.environment,
            "PEERS_FOLDER": str(self.folder),
            "PEERS_NOTES": str(self.folder / "notes"),
            "PEERS_DIGITS": str(digits.absolute()),
            "PEERS_CHECKPOINT": str(self.folder / "checkpoint"),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        self._starts = 0
        self._began = 0.0
        """When the job was started that now is."""
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        """Those that are started anew here, by slot."""
        self._due: dict[int, float] = {}
        self._leaving: dict[int, int] = {}
        """Processes that were told to leave and whom nobody else starts anew, by slot."""
        self.master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._start()
        return self

    def _start(self) -> None:
        """All of it, as a job that nobody knows of: but checkpoints are kept."""
        self._starts += 1
        self._began = time.monotonic()
        (port,) = free_ports(1)
        job = f"{self.folder.name}-{self._starts}"
        meeting, store = self.folder / f"meeting-{self._starts}", self.folder / f"store-{self._starts}"
        self._own |= {"PEERS_PORT": str(port), "PEERS_MEETING": str(meeting)}
        match self.kind.package:
            case "ftlib":
                self._own |= {"FTLIB_JOB": job, "FTLIB_SECRET": secrets.token_hex(32)}
                if "FTLIB_CONSENSUS" in self.kind.environment:
                    store.mkdir()
                    self._own["FTLIB_STORAGE"] = f"file://{store}"
                run = ["-m", "ftlib.cli.main", "run", "-n", str(WORKERS), "--max-restarts", "1000"]
                run += ["--resume", self._own["PEERS_CHECKPOINT"], "--job", job]
                self.master = self._spawn([sys.executable, *run, "-m", self.kind.program], "launcher")
            case "ddp":
                self.master = self._torchrun()
            case _:
                meeting.mkdir()
                if self.kind.lighthouse:
                    self._own["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
                    self.master = self._lighthouse()
                for slot in range(WORKERS):
                    self.add(slot)

    def restart(self) -> None:
        """Kill all of it, and start it as at the beginning: nobody was making steps any more."""
        self._stop()
        self._start()

    def _stop(self) -> None:
        self._kill_all()
        for child in (*self._workers.values(), self.master):
            if child is not None:
                child.wait()
        self.master = None
        for known in (self._workers, self._due, self._leaving):
            known.clear()

    def __exit__(self, *_: object) -> None:
        self._stop()
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
            own |= {} if "FTLIB_STORAGE" in self._own else {"FTLIB_INTRODUCERS": ",".join(self.notes.addresses(self._began))}
        elif not self.kind.lighthouse:  # the addresses of the one before lead nowhere
            Path(self._own["PEERS_MEETING"], f"{slot}.addresses").unlink(missing_ok=True)
        self._workers[slot] = self._spawn([self._python, "-m", self.kind.program], f"worker-{slot}", own)

    def leaves(self, slot: int, pid: int) -> None:
        """That process was told to leave. Who has left is started anew with every system, as on a machine that comes back."""
        if (
            self.kind.package == "ftlib" and slot not in self._workers
        ):  # ftlib run takes a worker that left for one that is done
            self._leaving[slot] = pid

    def tend(self) -> None:
        """Start anew who ended ``RESTART`` seconds ago or longer."""
        now = time.monotonic()
        for slot, pid in list(self._leaving.items()):
            if not alive(pid) and now >= self._due.setdefault(slot, now + RESTART):
                del self._due[slot], self._leaving[slot]
                self.add(slot)
        for slot, worker in list(self._workers.items()):
            if worker.poll() is not None and now >= self._due.setdefault(slot, now + RESTART) and self._may_join():
                del self._due[slot]
                self.add(slot)

    def _may_join(self) -> bool:
        """False while a job of ftlib that was started anew has no members yet that a worker could ask."""
        return self.kind.package != "ftlib" or bool(self.notes.addresses(self._began))

    def kill_master(self) -> None:
        """SIGKILL to the one process that the system depends on, which is then started anew, as an init system does that
        watches over it: what a launcher left of its workers is killed before.
        """
        assert self.master is not None
        self.master.kill()
        self.master.wait()
        if not self.kind.lighthouse:
            self._kill_all()
        time.sleep(RESTART)  # as long as a worker is away
        match self.kind.package:
            case "ftlib":
                for slot in range(WORKERS):  # it starts these itself
                    self._workers.pop(slot, None)
                self._due.clear()
                self._leaving.clear()
                self._start()
            case "ddp":
                self.master = self._torchrun()
            case _:
                self.master = self._lighthouse()

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
