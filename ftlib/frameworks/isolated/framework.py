"""Groups in processes that can be killed: ``framework="isolated:gloo"``.

The child in use and a spare one are forked by a process that has torch loaded (``nursery_process``), so that the next group
never waits for an import. What the others need to meet, the store, is in the training process, which outlives every child.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Callable, Mapping

import torch

from consensus import CarefulLogger
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import finish_tasks, start_task
from ftlib.frameworks.base import Framework, Group, GroupSpec
from ftlib.frameworks.builder import Build, GroupBuilder
from ftlib.frameworks.gloo import check_tensor
from ftlib.frameworks.rendezvous import StoreServer, interface_address, join_address, split_address

from .group import IsolatedGroup
from .group_process import GroupProcess
from .nursery import Nursery
from .records import Ended
from .segments import Segments
from .spares import Spares

_log = CarefulLogger(__name__)

_FINISH = 2.0
"""Seconds that ``close`` waits for what runs in the background."""
_ROLE = "ftlib.frameworks.isolated.group_child:prepare"


class IsolatedFramework(Framework):
    """Builds ``IsolatedGroup`` objects; its store serves the views that choose this member for it."""

    name = "isolated:gloo"

    def __init__(self) -> None:
        self.group: Group | None = None
        self._segments = Segments()
        self._host = ""
        self._server: StoreServer | None = None
        self._builder = GroupBuilder(self._make, lambda _spec: True)
        self._process = os.getpid()
        self._spares = self._new_spares()
        self._replaced = 0
        """By those that were there before ``_spares``."""

    @property
    def family(self) -> str:
        """That of Gloo: the other members need not know in which process a group lives."""
        return "gloo"

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that this one has started and knows of now: what forks, the spare child, the child in use."""
        group = self.group
        return (*self._spares.pids, group.pid) if isinstance(group, IsolatedGroup) else self._spares.pids

    @property
    def replaced(self) -> int:
        """See ``Framework``."""
        return self._replaced + self._spares.replaced

    def start(self, host: str) -> Mapping[str, str]:
        """Start the store and a spare child, which takes seconds. ConfigError if ``host`` is no address of this machine."""
        if not hasattr(os, "pidfd_open") or not hasattr(os, "memfd_create"):
            raise ConfigError("framework='isolated:gloo' needs Linux 5.3 or newer: use framework='gloo'")
        self._builder.reset()
        address = interface_address(host)
        if self._server is not None and address != self._host:
            self._server.close()
            self._server = None
        if self._server is None:
            sockets.guard_forks()
            self._host = address
            self._server = StoreServer(self._host)
            self._process = os.getpid()
            atexit.register(self.close)
        if self._spares.closed:
            self._replaced += self._spares.replaced
            self._spares = self._new_spares()
        self._spares.fork_ahead()  # whoever meets others can build a group in time, however long torch takes to import
        return {"store": join_address(self._server.address)}

    def rebuild(self, spec: GroupSpec) -> Group:
        """Have a child meet the other ranks and connect to all of them. GroupError names who did not come."""
        if self._server is None:
            raise ConfigError("start the framework before building groups")
        self.group = group = self._builder.rebuild(spec)
        if split_address(spec.store["store"]) == self._server.address:
            self._server.forget_before(spec.epoch)
        return group  # another thread may have another one by now

    def prepare(self, spec: GroupSpec) -> None:
        """Have another child build it (see ``Framework``)."""
        if self._server is not None:
            self._builder.prepare(spec)

    def cancel(self, before: int = 0) -> None:
        """Kill the child that is building a group (see ``Framework``)."""
        self._builder.cancel(before)

    def forget(self, spec: GroupSpec) -> None:
        """See ``Framework``."""
        if self._server is not None:
            self._server.forget(spec)

    def check(self, tensor: torch.Tensor) -> None:
        """As Gloo, which carries the operations out."""
        check_tensor(tensor)

    def allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory that children share: operations on it copy nothing."""
        return self._segments.allocate(count, dtype)

    def close(self) -> None:
        """End all processes, stop the store, until the next start. Idempotent. Nothing happens in a forked child."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        self.cancel()
        if self.group is not None:
            self.group.close()
            self.group = None
        self._spares.close()
        if self._server is not None:
            self._server.close()
            self._server = None
        finish_tasks(_FINISH, again=False)

    def _make(self, spec: GroupSpec) -> Build:
        return _IsolatedBuild(spec, self._host, self)

    def child(self) -> GroupProcess:
        """See ``Spares.take``."""
        return self._spares.take()

    def _new_spares(self) -> Spares[GroupProcess]:
        return Spares(Nursery(_ROLE), self._adopt, GroupProcess.warm)

    def _adopt(self, sock: socket.socket, pid: int, pidfd: int, lost: Callable[[str], None]) -> GroupProcess:
        return GroupProcess(sock, pid, pidfd, self._segments, lost)


class _IsolatedBuild(Build):
    """See ``Build``: in a child."""

    def __init__(self, spec: GroupSpec, host: str, framework: IsolatedFramework) -> None:
        self.spec, self._host, self._framework = spec, host, framework
        self.told = True  # as far as this process knows
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self._child: GroupProcess | None = None
        self._outcome: IsolatedGroup | GroupError | None = None

    @property
    def failed(self) -> bool:
        """See ``Build``."""
        return isinstance(self._outcome, GroupError)

    def start(self) -> None:
        """On a thread of its own, as there may be no child yet."""
        start_task("isolated-build", self._run)

    def wait(self) -> IsolatedGroup:
        """See ``Build``."""
        try:
            if not self._ended.wait(self.spec.timeout + 1.0):
                self.give_up(f"no group within {self.spec.timeout:g} s")
        except BaseException:  # a signal: nobody will take the group
            self.give_up("interrupted")
            raise
        if isinstance(self._outcome, IsolatedGroup):
            return self._outcome
        raise self._outcome or GroupError("no group was built")

    def give_up(self, why: str) -> None:
        """See ``Build``."""
        with self._lock:
            if self._outcome is not None:
                return
            self._given_up = True
            self._outcome = GroupError(f"building the group of epoch {self.spec.epoch} was given up: {why}")
            self._ended.set()
            child = self._child
        if child is not None:
            child.kill(why)

    def drop(self) -> None:
        """See ``Build``."""
        if isinstance(self._outcome, IsolatedGroup):
            self._outcome.close()

    def _run(self) -> None:
        try:
            child = self._framework.child()
            with self._lock:
                wanted, self._child = not self._given_up, child
            if wanted:
                child.build(self.spec, self._host, self._built)
            else:
                child.kill("given up")
        except GroupError as error:
            self._end(error)
        except Exception as error:  # noqa: BLE001 - it must reach the thread that waits
            _log.debug("building the group failed", exc_info=True)
            self._end(GroupError(f"building the group of epoch {self.spec.epoch} failed: {error}"))
            if self._child is not None:
                self._child.kill("it was not told what to build")

    def _built(self, ended: Ended) -> None:
        child = self._child
        assert child is not None
        if ended.text:
            self.told = ended.told
            child.kill("it built no group")
            self._end(GroupError(ended.text, ended.peers))
        else:
            self._end(IsolatedGroup(self.spec, child))

    def _end(self, outcome: IsolatedGroup | GroupError) -> None:
        with self._lock:
            unwanted = self._outcome is not None
            if not unwanted:
                self._outcome = outcome
                self._ended.set()
        if unwanted and isinstance(outcome, IsolatedGroup):
            outcome.close()
