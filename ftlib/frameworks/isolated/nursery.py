"""The training process's handle of the process that forks children (see ``nursery_process``), started when first needed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from consensus import import_path, release_in_children
from ftlib.errors import GroupError

_ROOT = str(Path(__file__).resolve().parents[3])
_COMMAND = """import sys
from ftlib.frameworks.isolated.nursery_process import main
main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])"""
_READY = 60.0
"""Seconds for the nursery to import torch, and to fork: a loaded machine may be slow."""
_HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Where the system has them: a fork then has few page tables to copy, and the end of a process few to free; both are urgent."""


class Nursery:
    """Forks children. Any thread."""

    def __init__(self, role: str, *arguments: str) -> None:
        """Starts nothing. ``role``: what it forks, see ``nursery_process.main``."""
        self._role = (role, *arguments)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._closed = threading.Event()
        self._descriptors: list[int] = []
        descriptors = self._descriptors
        release_in_children(self, lambda: tuple(descriptors))

    @property
    def pid(self) -> int:
        """0 where it does not run."""
        process = self._process
        return 0 if process is None else process.pid

    def fork(self) -> tuple[socket.socket, int, int]:
        """A new child: the socket to it, its pid, and a pidfd. GroupError where there is none."""
        try:
            return self._fork()
        except OSError as error:  # no descriptor is left, or no process
            raise GroupError(f"no process for a group could be forked: {error}") from error

    def _fork(self) -> tuple[socket.socket, int, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with self._lock, theirs:
                deadline = time.monotonic() + _READY
                for again in (True, False):
                    self._start()
                    found = self._ask(theirs, deadline)
                    if found is not None:
                        return ours, *found
                    self._stop()
                    if not again:
                        break
        except BaseException:
            ours.close()
            raise
        ours.close()
        raise GroupError("no process for a group could be forked: the process that forks them has ended")

    def close(self) -> None:
        """End the process, and its children with it. A fork under way fails at once. Idempotent."""
        self._closed.set()  # before the look at the process: ``_start`` looks in the other order
        process = self._process
        if process is not None:  # a fork that waits for its answer has the lock
            process.kill()
        with self._lock:
            self._stop()

    def _start(self) -> None:
        if self._closed.is_set():
            raise GroupError("the framework is closed")
        if self._process is not None and self._process.poll() is None:
            return
        self._stop()
        path = os.pathsep.join([_ROOT, *import_path()])
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                    [sys.executable, "-P", "-c", _COMMAND, str(theirs.fileno()), str(os.getpid()), *self._role],
                    env={**os.environ, **_HUGE_PAGES, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
                    cwd=_directory(),
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        self._sock = ours
        self._descriptors[:] = [ours.fileno()]
        if self._closed.is_set():
            self._stop()
            raise GroupError("the framework is closed")

    def _ask(self, theirs: socket.socket, deadline: float) -> tuple[int, int] | None:
        """Have it fork a child that gets ``theirs``. None where it has ended."""
        sock = self._sock
        assert sock is not None
        sock.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            socket.send_fds(sock, [b"fork"], [theirs.fileno()])
            data, fds, _, _ = socket.recv_fds(sock, 16, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:  # TimeoutError is one of them: the process is of no use
            return None
        return (int(data), fds[0]) if data and fds else None

    def _stop(self) -> None:
        if self._sock is not None:
            self._descriptors.clear()
            self._sock.close()
            self._sock = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()
            self._process = None


def _directory() -> str | None:
    """Where the process starts; None: here. Torch cannot be imported in a directory that was removed: its MKL aborts."""
    try:
        os.getcwd()  # noqa: PTH109 - whether there is one is all that counts
    except FileNotFoundError:
        return "/"
    return None
