"""A process that has imported everything and forks workers: they then start in tens of milliseconds, not two seconds.

    python -m tests.processes.zygote FD [MODULE]

``MODULE``: that of the workers' ``program``, which is prepared too.
``FD`` is one end of a Unix socket pair of type SEQPACKET. Each request is the JSON of one worker's ``Task``, with its control
sockets attached if it has any; the answers are ``{"pid"}`` for each, in order, and ``{"ended", "code", "t"}`` whenever a worker
has been reaped. There is no thread here, so that forking is safe. Workers die with the zygote, and it dies with its client.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent's main thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve(control: socket.socket) -> dict[str, Any] | None:
    """Fork as asked. Returns the task in each child, and None here once the client has gone."""
    wake_in, wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([control.fileno(), wake_in], [], [])
        if wake_in in readable:
            os.read(wake_in, 4096)
            _reap(control)
        if control.fileno() not in readable:
            continue
        data, fds, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not data:
            return None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent(parent)
            for fd in (wake_in, wake_out):
                os.close(fd)
            control.close()
            task: dict[str, Any] = json.loads(data)
            task["socket_fds"] = fds
            return task
        for fd in fds:
            os.close(fd)
        control.send(json.dumps({"pid": pid}).encode())


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        control.send(json.dumps({"ended": pid, "code": code, "t": time.monotonic()}).encode())


def main() -> int:
    """Import, serve; run the worker in each child."""
    die_with_parent(os.getppid())
    control = socket.socket(fileno=int(sys.argv[1]))
    from tests.processes import worker

    worker.prepare()
    for module in sys.argv[2:]:
        importlib.import_module(module).prepare()
    control.send(b'{"pid": 0}')
    task = serve(control)
    if task is None:
        return 0
    code = 1
    try:
        code = worker.main(task)
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        # Not through the interpreter's end: it visits every object that was imported, and as these pages are shared with the
        # zygote, copying them takes seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
