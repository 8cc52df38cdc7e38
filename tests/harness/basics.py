"""What any test may need: ports that nobody has, and to wait for something."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

TIMEOUT = 120.0
"""Seconds that anything may take. A busy machine takes its time; what hangs, hangs for longer."""

PATIENT = {"exclude_after": 30.0, "lease": 30.0, "ready_timeout": 40.0}
"""Settings of workers of tests that are not about silence: on a busy machine a healthy one may well not run for ten seconds."""

_RANGE = range(10_000, 32_768)
"""Below those that a kernel gives away by itself: a port of these may be let go for a moment, as for a restart."""

_SLICE = 128
"""Ports of that range that one process of tests has to itself."""


@functools.cache
def _slice(pid: int) -> tuple[int, Iterator[int]]:
    """Ports of the process ``pid`` in turns, and the descriptor that keeps all others off them until it and its forks end."""
    claim = socket.socket(socket.AF_UNIX)  # named in this network namespace: where the ports are
    chance = random.SystemRandom()  # tests that run at the same time may have seeded theirs alike
    for start in chance.sample(_RANGE[::_SLICE], len(_RANGE[::_SLICE])):
        with contextlib.suppress(OSError):
            claim.bind(f"\0ftlib-tests-ports-{start}")
            ports = range(start, min(start + _SLICE, _RANGE.stop))
            return claim.detach(), itertools.cycle(chance.sample(ports, len(ports)))
    raise RuntimeError("all slices of ports are held: end the processes that other runs of the tests have left")


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many, free for TCP and for UDP, and that no other test gets before whoever asked for them binds them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    _, ports = _slice(os.getpid())
    found: list[int] = []
    with ExitStack() as held:
        while len(found) < count:
            port = next(ports)
            with contextlib.suppress(OSError):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    held.enter_context(socket.socket(family, kind)).bind((host, port))
                found.append(port)
    return found


def bind() -> tuple[socket.socket, socket.socket]:
    """A UDP and a listening TCP socket on one free port of loopback."""
    while True:
        tcp = socket.socket()
        udp = socket.socket(type=socket.SOCK_DGRAM)
        tcp.bind(("127.0.0.1", 0))
        try:
            udp.bind(tcp.getsockname())
        except OSError:
            tcp.close()
            udp.close()
            continue
        tcp.listen(512)
        return udp, tcp


def eventually(condition: Callable[[], Any], what: object, limit: float = TIMEOUT) -> float:
    """Seconds until ``condition`` held. ``what``: for whoever reads that it did not; if callable, what it says then."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit:
            raise AssertionError(f"not within {limit:g} s: {what() if callable(what) else what}")
        time.sleep(0.002)
    return time.monotonic() - began


def lives(pid: int) -> bool:
    """Whether that process is still there: one that has ended and that nobody has waited for is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(pids: Iterable[int]) -> None:
    """SIGKILL. Returns once all of them have ended: until a killed process runs once more, it is listed and holds its ports."""
    pids = list(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(map(lives, pids)), lambda: f"killed, but still there: {[pid for pid in pids if lives(pid)]}")


def stop_child(pid: int) -> None:
    """SIGSTOP. Returns once all threads of that child have stopped: until then some of them still answer."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)


class Tail:
    """JSON lines that somebody else writes to a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._size = path, 0

    def read(self) -> list[dict[str, Any]]:
        """What is new; half a line waits."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._size)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._size += len(whole)
            return [json.loads(line) for line in whole.splitlines()]
        return []


def around(patch: Any, owner: Any, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function in the place of ``owner.name``, until ``patch`` is undone; its first argument is what was there."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        usual = getattr(owner, name)

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(usual, *args, **kwargs)

        patch.setattr(owner, name, wrapper)
        return function

    return decorate
