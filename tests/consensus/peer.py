"""A member in a process of its own, to be killed: ``python -m tests.consensus.peer '{"bind": ...}'``.

Prints one JSON line with its id and address once it listens, and lives until its standard
input closes (so that it cannot outlive the test).
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from consensus import Config, Gossip, Home, Member, Policy, format_address
from consensus.runtime.host.robust_mutex import RobustMutex
from tests.harness.basics import PATIENT, TIMEOUT, stop_child

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Peer:
    """The parent's handle."""

    process: subprocess.Popen[str]
    member: Member

    @property
    def address(self) -> str:
        return format_address(self.member.address)

    def kill(self) -> None:
        """SIGKILL, without waiting."""
        os.kill(self.process.pid, signal.SIGKILL)

    def tell(self, line: str) -> None:
        """One of the orders that ``main`` knows; returns once it is carried out, or ("hold") about to be."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == f"{line}\n", "the peer has ended"

    @property
    def agent(self) -> int:
        """The pid of its agent's process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"ftlib-agent" in Path(f"/proc/{pid}/comm").read_bytes())

    def pause(self) -> None:
        """See ``stop_child``."""
        stop_child(self.process.pid)
        time.sleep(0.02)  # its agent asks the kernel every few milliseconds whether it is stopped

    def close(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


def spawn(
    *,
    pass_fds: tuple[int, ...] = (),
    fork: bool = False,
    no_robust_mutex: bool = False,
    prefix: Sequence[str] = (),
    **settings: Any,
) -> Peer:
    """Start a peer with these settings of ``Config`` and wait until it listens. ``prefix`` goes before the command."""
    settings = {"fork": fork, "no_robust_mutex": no_robust_mutex, "exclude_after": PATIENT["exclude_after"], **settings}
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.consensus.peer", json.dumps(settings)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(TIMEOUT)
        raise RuntimeError(f"the peer ended with {process.returncode} before it listened")
    found = json.loads(line)
    return Peer(process, Member(found["id"], found["host"], found["port"]))


def _no_robust_mutex(_memory: mmap.mmap) -> NoReturn:
    raise OSError(errno.ENOSYS, "as an old kernel")


def main() -> None:
    """The child's side."""
    settings = json.loads(sys.argv[1])
    fork = settings.pop("fork")
    if settings.pop("no_robust_mutex"):
        RobustMutex.create = _no_robust_mutex  # type: ignore[method-assign]
    if "policy" in settings:
        settings["policy"] = Policy(settings["policy"])
    if "agent" in settings:
        settings["agent"] = Home(settings["agent"])
    for name in ("introducers", "socket_fds"):
        settings[name] = tuple(settings.get(name, ()))
    gossip = Gossip(Config(**settings))
    gossip.start()
    gossip.seek_admission()
    if fork and os.fork() == 0:  # as a DataLoader's worker: it outlives its parent, until standard input closes
        sys.stdin.read()
        os._exit(0)
    member = gossip.member
    print(json.dumps({"id": member.id, "host": member.host, "port": member.port}), flush=True)
    memory: list[bytes] = []
    for line in sys.stdin:
        kind, value = line.split()
        if kind == "hold":  # as a C extension that keeps the interpreter's lock
            print(line, end="", flush=True)
            ctypes.PyDLL(None).usleep(int(float(value) * 1e6))
        elif kind == "where":
            gossip.progress(*map(int, value.split(",")))
            print(line, end="", flush=True)
        elif kind == "touch":  # so many MB
            memory.append(b"\1" * (int(value) << 20))
            print(line, end="", flush=True)
        elif kind == "execute":
            print(line, end="", flush=True)
            os.execlp(value, value, "60")
        else:
            raise SystemExit(f"no order of a peer: {kind}")


if __name__ == "__main__":
    main()
