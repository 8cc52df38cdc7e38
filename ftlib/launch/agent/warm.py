"""The warm process of a host: it imports what the workers need once, and forks them. So a replacement need not import torch.

    python -m ftlib.launch.agent.warm SOCKET [MODULE ...] [+MODULE ...]

A request is a packet with the worker's descriptors attached, of which the first holds its ``Birth``; the answer is its pid.
The fork is safe as there is one thread here and no CUDA: if an import has started threads, this process begins again without
it, and each worker imports for itself. Modules with a + are imported once the first workers were forked and nobody has asked
for more for a while, or somebody asks for a worker that joins others: they delay no founding, and whoever joins has them,
for once what would be done in each. A worker is forked twice, so that it is a
child of the agent, which is told of its end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
from pathlib import Path

import msgpack

from ...common.processes import call_process, die_with_parent, opened_cuda
from .child import Birth, live

MOST_FDS = 16
FORK, JOIN = b"fork", b"join"
"""Requests: for a worker, and for one that joins a job that trains already."""
LATER = "+"
_QUIET = 1.0
"""Seconds without a request after which there is time to import more."""


def main(arguments: list[str]) -> int:
    """Prepare, then fork whatever is asked for; in each worker its whole life. Returns the exit code."""
    parent = os.getppid()
    die_with_parent(parent)
    call_process("ftlib-warm")
    agent = socket.socket(fileno=int(arguments[0]))
    _prepare(arguments)
    born = _serve(agent, arguments)
    if born is None:
        return 0
    call_process("ftlib-worker")
    return live(*born)


def _prepare(arguments: list[str]) -> None:
    with contextlib.suppress(ImportError):  # the caller refuses a host without it
        importlib.import_module("cloudpickle")  # each worker needs it for what it returns
    modules = [name for name in arguments[1:] if not name.startswith(LATER)]
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may fail in any way; the worker that needs it will say so
            if not isinstance(error, ModuleNotFoundError) or error.name != name.partition(".")[0]:
                sys.stderr.write(f"preload of {name} failed: {type(error).__name__}: {error}\n")
    why = _unsafe()
    if modules and why:
        sys.stderr.write(f"preload of {', '.join(modules)} {why}: each worker imports it itself\n")
        _begin_again(arguments[:1])
    _keep()


def _prepare_more(arguments: list[str]) -> None:
    """Import what workers will want that replace others; what cannot be had so is left to them."""
    for name in arguments[1:]:
        if name.startswith(LATER):
            with contextlib.suppress(Exception):
                importlib.import_module(name.removeprefix(LATER))
    if _unsafe():
        _begin_again([name for name in arguments if not name.startswith(LATER)])
    _keep()


def _begin_again(arguments: list[str]) -> None:
    """Be a new process, with the same socket, that imports less."""
    sys.stderr.flush()
    os.set_inheritable(int(arguments[0]), True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "ftlib.launch.agent.warm", *arguments])  # noqa: S606


def _keep() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays: no worker shall copy these pages to count references


def _unsafe() -> str:
    """Why no worker should be forked from this process; empty if it may."""
    if opened_cuda():  # which starts threads, too
        return "has opened CUDA"
    threads = len(list(Path("/proc/self/task").iterdir()))
    return f"started {threads - 1} threads" if threads > 1 else ""


def _serve(agent: socket.socket, arguments: list[str]) -> tuple[Birth, int] | None:
    """Fork as asked, until the agent has gone. Returns in each worker what it is given, and who forked it."""
    later = any(name.startswith(LATER) for name in arguments)
    forked = False
    while True:
        if later and _in_time(agent, forked):
            later = False
            _prepare_more(arguments)
        packet, fds, _, _ = socket.recv_fds(agent, 64, MOST_FDS)
        if not packet:
            return None
        birth = _read(fds)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            os.close(reading)
            forker = os.getpid()
            pid = os.fork()
            if pid:
                os.write(writing, str(pid).encode())
                os._exit(0)
            os.close(writing)
            agent.close()
            return birth, forker
        os.close(writing)
        os.waitpid(between, 0)
        answer = os.read(reading, 32)
        os.close(reading)
        for fd in fds:
            os.close(fd)
        try:
            agent.send(answer)
        except OSError:
            return None
        forked = True


def _in_time(agent: socket.socket, forked: bool) -> bool:
    """Wait for the next request, or for some quiet; whether more is to be imported before anything else."""
    if forked and not select.select([agent], [], [], _QUIET)[0]:
        return True
    return agent.recv(64, socket.MSG_PEEK) == JOIN


def _read(fds: list[int]) -> Birth:
    """The ``Birth`` that the first descriptor holds, with the numbers that the others have here."""
    size = os.fstat(fds[0]).st_size
    fields = msgpack.unpackb(os.pread(fds[0], size, 0))
    out, err, records, gate, call, outcome, *more = fds[1:]
    control = tuple(more[:2]) if fields.pop("founder") else ()
    master = more[len(control)] if fields.pop("master") else -1
    return Birth(out, err, records, gate, call, outcome, control, master, **fields)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(main(sys.argv[1:]))
