"""The fork server: a process that has imported everything and forks workers. They start in tens of milliseconds, not seconds.

    python -m tests.harness.zygote SOCKET MODULE...

It listens at ``SOCKET`` (type SEQPACKET), returns, and goes on in the background: it prepares each ``MODULE``, and then
serves whoever connects (see ``nursery``), until nobody is connected any more. A request is the JSON of ``{"module", "task"}``,
with the worker's control sockets attached if it has any: ``module.run(task)`` is its life. The answers are ``{"pid": 0}`` once
requests are heard, ``{"pid"}`` for each, in order, and ``{"ended", "code", "t"}`` whenever a worker was reaped. Workers die
with whoever asked for them, and with the server. There is no thread here, so that forking is safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from ftlib.common.processes import settle_autograd

_PR_SET_PDEATHSIG = 1
_ALONE = 180.0
"""Seconds that it waits for the first one to connect."""


def die_with_parent(parent: int) -> None:
    """SIGKILL for this process when its parent's main thread ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


class Order(NamedTuple):
    """What a forked child is to do."""

    module: str
    task: dict[str, Any]


class Server:
    """The clients and their workers."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._clients: set[socket.socket] = set()
        self._owners: dict[int, socket.socket] = {}
        """Who asked for each worker that has not been reaped."""
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)

    def serve(self) -> Order | None:
        """Fork as asked. Returns the order in each child, and None here once all clients have gone."""
        signal.set_wakeup_fd(self._wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = [key.fileobj for key, _ in self._selector.select(None if self._clients else _ALONE)]
            if self._wake_in in ready:
                os.read(self._wake_in, 4096)
                self._reap()
            if self._listener in ready:
                self._accept()
            for client in self._clients.intersection(ready):
                order = self._hear(client)
                if order is not None:
                    return order
            if not self._clients:
                self._listener.close()
                return None

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self._clients.add(client)
        self._selector.register(client, selectors.EVENT_READ)
        self._tell(client, pid=0)

    def _hear(self, client: socket.socket) -> Order | None:
        data, fds = b"", []
        with contextlib.suppress(ConnectionError):
            data, fds, _, _ = socket.recv_fds(client, 1 << 16, 2)
        if not data:
            self._forget(client)
            return None
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._let_go(parent)
            order = Order(**json.loads(data))
            order.task["socket_fds"] = fds
            return order
        for fd in fds:
            os.close(fd)
        self._owners[pid] = client
        self._tell(client, pid=pid)
        return None

    def _let_go(self, parent: int) -> None:
        """In a child: nothing of the server is left."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(parent)
        self._selector.close()
        for fd in (self._wake_in, self._wake_out):
            os.close(fd)
        for item in (self._listener, *self._clients):
            item.close()
        settle_autograd()

    def _forget(self, client: socket.socket) -> None:
        self._clients.discard(client)
        self._selector.unregister(client)
        client.close()
        for pid, owner in self._owners.items():
            if owner is client:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._tell(self._owners.pop(pid), ended=pid, code=os.waitstatus_to_exitcode(status), t=time.monotonic())

    @staticmethod
    def _tell(client: socket.socket, **values: Any) -> None:
        with contextlib.suppress(OSError):  # it has gone, and that is found where it is heard
            client.send(json.dumps(values).encode())


def main(path: str, *modules: str) -> int:
    """Serve, and run the worker in each child."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    Path(path).unlink(missing_ok=True)
    listener.bind(path)
    listener.listen(128)
    if os.fork():
        os._exit(0)
    for module in modules:
        importlib.import_module(module).prepare()
    gc.collect()
    gc.freeze()  # what is here stays: looking through it for garbage would copy its pages in each child
    order = Server(listener).serve()
    return 0 if order is None else importlib.import_module(order.module).run(order.task)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
