"""The process that has the group: builds it, carries out operations on memory that it shares with the training process.

Its main thread reads records and never waits for an operation, so that it always answers. The end of an operation is told by
the thread that saw it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import Group, GroupSpec, Operation, Work
from ftlib.frameworks.gloo_build import GlooBuild, beginning_to_listen
from ftlib.frameworks.rendezvous import StoreServer, join_address

from .records import LIMIT, Build, Close, Ended, Ping, Record, Run, Segment, Warm, unpack

_WAIT = 3600.0
"""Seconds of one wait for an operation, which has a deadline of its own."""
_LOOK = 0.005
"""Seconds between two looks whether an operation that failed has ended."""
_REST = 0.3
"""Seconds from the end of the training process to that of this one: first whoever recovers from that has the processors."""
_ALONE = "127.0.0.1"
_WARMED = 5.0
"""Seconds for a group with itself."""


class Child:
    """One of it in a process. ``run`` until the training process closes its end, or says so."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._segments: dict[int, torch.Tensor] = {}
        self._group: Group | None = None

    def run(self) -> None:
        """Read records until the end."""
        sockets.guard_forks()
        while True:
            data, fds, _, _ = socket.recv_fds(self._sock, LIMIT + 1, 1)
            if not data:
                self._cut()
                time.sleep(_REST)
                return
            self._carry_out(unpack(data), fds)

    def _carry_out(self, record: Record, fds: list[int]) -> None:
        match record:
            case Run():
                self._begin(record)
            case Segment(number, nbytes):
                self._take(number, nbytes, fds)
            case Ping():
                self._tell(record)
            case Close():
                self._cut()
            case Warm():
                start_task("warm", _warm)
            case Build(spec, host):
                build = GlooBuild(spec, host)
                build.start()
                start_task("build", functools.partial(self._build, build))
            case _:
                raise ValueError(f"{record} is no order")

    def _cut(self) -> None:
        """What is under way fails here and at the peers. Nothing is freed: the end of this process does that."""
        if self._group is not None:
            self._group.abort()

    def _take(self, number: int, nbytes: int, fds: list[int]) -> None:
        if not nbytes:
            self._segments.pop(number, None)
            return
        [fd] = fds
        try:
            self._segments[number] = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)
        finally:
            os.close(fd)

    def _build(self, build: GlooBuild) -> None:
        try:
            self._group = build.wait()
        except GroupError as error:
            self._tell(Ended(0, str(error) or "no group", error.peers, build.told))
        else:
            self._tell(Ended(0))

    def _begin(self, run: Run) -> None:
        try:
            if self._group is None:
                raise GroupError("there is no group")
            segment, end = self._segments[run.segment], run.offset + run.count * run.dtype.itemsize
            if end > segment.numel() or run.offset % run.dtype.itemsize:
                raise GroupError(
                    f"operation {run.number} is on memory outside of segment {run.segment}, or between its elements"
                )
            tensor = segment[run.offset : end].view(run.dtype)
            work = self._group.submit(Operation(run.kind, tensor, run.reduction, run.peer, run.tag))
        except (GroupError, KeyError) as error:
            self._tell(Ended(run.number, str(error) or "failed", getattr(error, "peers", ())))
            return
        start_task("end", functools.partial(self._ended, run.number, work))

    def _ended(self, number: int, work: Work) -> None:
        try:
            work.wait(_WAIT)
        except GroupError as error:
            while not work.done():  # it was abandoned and may still write
                time.sleep(_LOOK)
            self._tell(Ended(number, str(error) or "failed", error.peers))
        else:
            self._tell(Ended(number))

    def _tell(self, record: Record) -> None:
        try:
            self._sock.send(record.pack())
        except OSError:  # the training process has ended, and this one is about to
            os._exit(0)


def _warm() -> None:
    """Build a group of two ranks that are both here, and use it: the first time after a fork takes tens of milliseconds."""
    with contextlib.suppress(ConfigError, GroupError), contextlib.ExitStack() as stack:  # whoever needs a group finds that out
        with beginning_to_listen:
            server = StoreServer(_ALONE)
        stack.callback(server.close)
        store = {"store": join_address(server.address)}
        builds = [GlooBuild(GroupSpec("warm", 0, rank, 2, store, _WARMED), _ALONE) for rank in range(2)]
        for build in builds:
            stack.callback(build.drop)
            stack.callback(build.give_up, "warmed up")
            build.start()
        groups = [build.wait() for build in builds]
        for work in [group.allreduce(torch.zeros(1 << 14)) for group in groups]:
            work.wait(_WARMED)


def serve(sock: socket.socket, settle: Callable[[], Any]) -> None:
    """The life of a child. ``settle``: what it has to do first."""
    code = 1
    try:
        settle()
        Child(sock).run()
        code = 0
    finally:
        os._exit(code)
