"""Asks the warm process for workers, and owns it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack

from ..processes.steward import Steward
from ..processes.worker import Pipes, Worker
from .outbox import Outbox
from .records import Records
from .warm import FORK, JOIN

WARM = -1
"""The index of the warm process among the workers: its lines are the agent's."""


class Nursery:
    """The warm process of this host, started when it is first needed, and again if it was killed."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        steward: Steward,
        sink: Outbox,
        environment: Mapping[str, str],
        preload: Sequence[str],
    ) -> None:
        self._loop = loop
        self._steward = steward
        self._sink = sink
        # numpy's library of linear algebra would start threads as it is imported, and no worker could be forked then.
        self._environment = {"OPENBLAS_NUM_THREADS": "1", **environment}
        self._preload = preload
        self._warm: Worker | None = None
        self._socket: socket.socket | None = None
        self._asked: asyncio.Lock = asyncio.Lock()

    def begin(self) -> None:
        """Start the warm process, if it does not run."""
        if self._warm is not None and not self._warm.gone.done():
            return
        if self._socket is not None:
            self._socket.close()
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            command = [sys.executable, "-P", "-m", "ftlib.launch.agent.warm", str(there.fileno()), *self._preload]
            self._warm = Worker.spawn(WARM, "warm process", command, self._environment, self._sink, (there.fileno(),))
        here.setblocking(False)
        self._socket = here
        self._steward.take(self._warm)

    async def bear(
        self,
        index: int,
        name: str,
        facts: Mapping[str, Any],
        call: int,
        outcome: int,
        control: Sequence[int],
        master: int,
        *,
        joins: bool,
        wanted: Callable[[], bool],
    ) -> tuple[Worker, Records] | None:
        """A worker that lives as soon as this returns; None: it was not ``wanted`` any more, and does nothing.

        ``joins``: others train already. Raises OSError if there can be none.
        """
        async with self._asked:
            if not wanted():
                return None
            self.begin()
            records = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            gate = os.pipe()
            try:
                with Pipes() as pipes:
                    fds = [pipes.out[1], pipes.err[1], records[1].fileno(), gate[0], call, outcome, *control]
                    facts = {**facts, "founder": bool(control), "master": master >= 0}
                    pid = await self._ask(JOIN if joins else FORK, facts, fds + [master] * (master >= 0))
                    if not wanted():
                        return None  # it finds its gate shut, and ends
                    _require_child(pid)
                    worker = Worker(index, name, pid, *pipes.taken(), self._sink)
                self._steward.take(worker)
                reader = Records(records[0].detach(), index, self._loop, self._sink)
                os.write(gate[1], b"!")
            finally:
                for end in records:
                    end.close()
                for fd in gate:
                    os.close(fd)
        return worker, reader

    async def _ask(self, request: bytes, facts: Mapping[str, Any], fds: list[int]) -> int:
        assert self._socket is not None
        order = os.memfd_create("ftlib-birth")
        try:
            with open(order, "wb", closefd=False) as file:  # noqa: ASYNC230 - a descriptor, of memory
                file.write(msgpack.packb(facts))
            socket.send_fds(self._socket, [request], [order, *fds])
        finally:
            os.close(order)
        answer = await self._loop.sock_recv(self._socket, 32)
        if not answer:
            raise OSError("the warm process has ended")
        return int(answer)

    def close(self) -> None:
        """Let the warm process end."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


def _require_child(pid: int) -> None:
    """Raise ChildProcessError for a worker that was killed and reaped before anybody knew of it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
