"""The process that has a group: builds it, carries out operations on memory that it shares with the training process.

The end of an operation is told by the thread that saw it.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import time

import torch

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.background import start_task
from ftlib.frameworks.base import Group, GroupSpec, Operation, Work
from ftlib.frameworks.gloo_build import GlooBuild, beginning_to_listen
from ftlib.frameworks.rendezvous import StoreServer, join_address

from .child import Child, Kind
from .records import Build, Close, Ended, Packed, Record, Run, Warm, unpack

_WAIT = 3600.0
"""Seconds of one wait for an operation, which has a deadline of its own."""
_LOOK = 0.005
"""Seconds between two looks whether an operation that failed has ended."""
_ALONE = "127.0.0.1"
_WARMED = 5.0
"""Seconds for a group with itself."""


class GroupChild(Child):
    """See ``Child``."""

    PROCESS = "ftlib-group"

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._group: Group | None = None

    def unpack(self, data: bytes) -> Record:
        """See ``Child``."""
        return unpack(data)

    def carry_out(self, record: Packed) -> None:
        """See ``Child``."""
        match record:
            case Run():
                self._begin(record)
            case Close():
                self.left()
            case Warm():
                start_task("warm", _warm)
            case Build(spec, host):
                build = GlooBuild(spec, host)
                build.start()
                start_task("build", functools.partial(self._build, build))
            case _:
                raise ValueError(f"{record} is no order")

    def left(self) -> None:
        """What is under way fails here and at the peers. Nothing is freed: the end of this process does that."""
        if self._group is not None:
            self._group.abort()

    def _build(self, build: GlooBuild) -> None:
        try:
            self._group = build.wait()
        except GroupError as error:
            self.tell(Ended(0, str(error) or "no group", error.peers, build.told))
        else:
            self.tell(Ended(0))

    def _begin(self, run: Run) -> None:
        try:
            if self._group is None:
                raise GroupError("there is no group")
            tensor = self.row(run.segment, run.offset, run.count, run.dtype)
            work = self._group.submit(Operation(run.kind, tensor, run.reduction, run.peer, run.tag))
        except GroupError as error:
            self.tell(Ended(run.number, str(error) or "failed", error.peers))
            return
        start_task("end", functools.partial(self._ended, run.number, work))

    def _ended(self, number: int, work: Work) -> None:
        try:
            work.wait(_WAIT)
        except GroupError as error:
            while not work.done():  # it was abandoned and may still write
                time.sleep(_LOOK)
            self.tell(Ended(number, str(error) or "failed", error.peers))
        else:
            self.tell(Ended(number))


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
        for work in [group.allreduce(torch.zeros(1 << 14, dtype=torch.float32, device="cpu")) for group in groups]:
            work.wait(_WARMED)


def prepare() -> Kind:
    """What the nursery forks."""
    return GroupChild
