"""Gloo over TCP, the default backend for CPU tensors. This module builds groups; their operations are in ``gloo_group``.

Each group has its own Gloo device, hence its own listening port. The ranks exchange these addresses when they meet. From them
each rank knows which sockets of its process belong to the group: accepted connections have its own listening address at the
local end, initiated ones a peer's listening address at the remote end.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import resource
import threading
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import ProcessGroupGloo

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import finish_tasks, start_task
from ftlib.frameworks.base import Framework, Group, GroupSpec
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.rendezvous import Meeting, StoreServer, interface_address, join_address, split_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ftlib.frameworks.sockets import Address, Inode

_log = logging.getLogger(__name__)

_DTYPES = {
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
}
"""The dtypes that Gloo reduces; others end in "Invalid scalar type"."""
_THREADS = 2
"""Number of operations that one group runs at the same time."""
_FINISH = 2.0
"""Seconds that ``close`` waits at most for old groups to be destroyed, which takes tens of milliseconds each."""

_REST = 0.05
"""Seconds by which the exchange of connection addresses is delayed: threads that wait for the group run first."""

_REMEMBERED = 64
"""Number of views that are remembered because their prepared group was dropped."""

_making_device = threading.Lock()
"""Held while a device is made, so that the one new listening socket is its own."""


class GlooFramework(Framework):
    """Builds ``GlooGroup`` objects; its store serves the views that choose this member as rendezvous host."""

    name = "gloo"

    def __init__(self) -> None:
        self.group: Group | None = None
        self._host = ""
        self._server: StoreServer | None = None
        self._build: _Build | None = None
        self._ahead: _Build | None = None
        """The build that ``prepare`` has begun and ``rebuild`` has not taken."""
        self._spoilt: deque[str] = deque(maxlen=_REMEMBERED)
        """Views whose prepared group was dropped: no other group can be built for them."""
        self._turn = threading.Lock()
        self._void_before = 0
        """Epochs below this one are cancelled. ``_turn`` guards it, ``_build``, ``_ahead`` and ``_spoilt``."""
        self._process = os.getpid()

    def start(self, host: str) -> Mapping[str, str]:
        """Start the store; restart it if ``host`` has changed. ConfigError if ``host`` is no address of this machine."""
        self._void_before = 0
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
        return {"store": join_address(self._server.address)}

    def rebuild(self, spec: GroupSpec) -> Group:
        """Meet the other ranks at the store, connect to all of them. GroupError names the missing ranks."""
        server = self._server
        if server is None:
            raise ConfigError("start the framework before building groups")
        unwanted = None
        try:
            with self._turn:
                if spec.epoch < self._void_before:
                    raise GroupError(f"building the group of epoch {spec.epoch} was given up: cancelled")
                unwanted = self._part_with_all_but(spec, "another view came")
                build, self._ahead = self._ahead, None
                if build is None and spec.view_id not in self._spoilt:
                    build = _Build(spec, self._host, server)
                    build.start()
                self._build = build
        finally:
            if unwanted is not None:
                unwanted.drop()
        if build is None:  # the others may hold the address of the dropped group
            raise GroupError(f"the group of epoch {spec.epoch} was built ahead and dropped: it takes another view")
        try:
            self.group = build.wait()
        finally:
            self._build = None
        return self.group

    def prepare(self, spec: GroupSpec) -> None:
        """Build the group on a thread of its own (see ``Framework``)."""
        server, unwanted = self._server, None
        try:
            with self._turn:
                if server is None or spec.epoch < self._void_before or spec.view_id in self._spoilt or _scarce(spec.size):
                    return
                unwanted = self._part_with_all_but(spec, "another view is expected")
                if self._ahead is None:
                    build = _Build(spec, self._host, server)
                    build.start()
                    self._ahead = build
        finally:
            if unwanted is not None:
                unwanted.drop()

    def _part_with_all_but(self, spec: GroupSpec | None, why: str) -> _Build | None:
        """Give up and return the prepared build if it is for another ``spec``, or failed before its address was sent.

        The caller holds ``_turn``, and drops the returned build after releasing it.
        """
        ahead = self._ahead
        if ahead is None or (ahead.spec == spec and (ahead.told or not ahead.failed)):
            return None
        self._ahead = None
        ahead.give_up(why)
        if ahead.told:
            self._spoilt.append(ahead.spec.view_id)
        return ahead

    def cancel(self, before: int = 0) -> None:
        """Give up the rebuild under way, if any (see ``Framework``); it raises GroupError at once."""
        unwanted = None
        with self._turn:
            self._void_before = max(self._void_before, before)
            build = self._build
            if self._ahead is not None and (not before or self._ahead.epoch < before):
                unwanted = self._part_with_all_but(None, "cancelled")
        if build is not None and (not before or build.epoch < before):
            build.give_up("cancelled")
        if unwanted is not None:
            unwanted.drop()

    def check(self, tensor: torch.Tensor) -> None:
        """ConfigError unless the tensor is dense, on the CPU and of a dtype that Gloo reduces."""
        device = tensor.device.type
        if device != "cpu":
            raise ConfigError(f"gloo reduces CPU tensors, this one is on {device}: move it, or choose another framework")
        if tensor.layout is not torch.strided:
            raise ConfigError(f"gloo reduces dense tensors, this one is {tensor.layout}: call .to_dense() on it")
        if tensor.dtype not in _DTYPES:
            names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _DTYPES))
            raise ConfigError(f"gloo cannot reduce {tensor.dtype} tensors: convert to one of {names}")

    def close(self) -> None:
        """Cancel, close the newest group, stop the store. Idempotent. Nothing happens in a forked child."""
        atexit.unregister(self.close)
        if os.getpid() != self._process:
            return
        self.cancel()
        if self.group is not None:
            self.group.close()
            self.group = None
        if self._server is not None:
            self._server.close()
            self._server = None
        if not finish_tasks(_FINISH):
            _log.warning("operations of an old group are still under way in Gloo")


class _Build:
    """One attempt to build a group, on a thread of its own, so that ``give_up`` ends it whatever that thread waits for."""

    def __init__(self, spec: GroupSpec, host: str, server: StoreServer) -> None:
        self.spec, self._host, self._server = spec, host, server
        self.epoch = spec.epoch
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self.told = False
        """True if other ranks may know this group's address: then no other group can be built for the view."""
        self._meeting: Meeting | None = None
        self._local: set[Address] = set()
        self._remote: set[Address] = set()
        self._outcome: GlooGroup | GroupError | None = None

    def start(self) -> None:
        """Begin to build. Called once."""
        start_task("gloo-build", self._run)

    @property
    def failed(self) -> bool:
        """True if the build has failed or was given up."""
        return isinstance(self._outcome, GroupError)

    def drop(self) -> None:
        """After ``give_up``: close the group if it was already built."""
        if isinstance(self._outcome, GlooGroup):
            self._outcome.close()

    def wait(self) -> GlooGroup:
        """Return the group once it is built, or raise GroupError."""
        try:
            if not self._ended.wait(self.spec.timeout + 1.0):
                self.give_up(f"no group within {self.spec.timeout:g} s")
        except BaseException:  # a signal: nobody will take the group
            self.give_up("interrupted")
            raise
        if isinstance(self._outcome, GlooGroup):
            return self._outcome
        raise self._outcome or GroupError("no group was built")

    def give_up(self, why: str) -> None:
        """End ``wait`` with a GroupError now, and make the building thread end soon."""
        with self._lock:
            if self._outcome is not None:
                return
            self._given_up = True
            self._outcome = GroupError(f"building the group of epoch {self.spec.epoch} was given up: {why}")
            self._ended.set()
            meeting, local, remote = self._meeting, self._local, self._remote
        if meeting is not None:
            meeting.leave()
        if meeting is not None and remote:  # Gloo itself is at work
            meeting.cut()
            for link in sockets.connections(local, remote):
                link.cut()
                link.close()

    def _run(self) -> None:
        outcome: GlooGroup | GroupError
        try:
            outcome = self._build()
        except GroupError as error:
            outcome = error.afresh()
        except Exception as error:  # noqa: BLE001 - it must reach the thread that waits
            _log.debug("building the group failed", exc_info=True)
            outcome = GroupError(f"building the group of epoch {self.spec.epoch} failed: {error}")
        with self._lock:
            unwanted = self._given_up
            if not unwanted:
                self._outcome = outcome
                self._ended.set()
        if unwanted and isinstance(outcome, GlooGroup):
            outcome.close()
        elif isinstance(outcome, GlooGroup):
            self._complete(outcome)

    def _complete(self, group: GlooGroup) -> None:
        """Do what nobody waits for: exchange the addresses of accepted connections, delete old keys from the store."""
        meeting, me = self._meeting, str(self.spec.rank)
        if meeting is not None:
            with contextlib.suppress(GroupError):  # the group may be gone already
                ends = {str(rank): join_address(local) for rank, local in group.locals().items()}
                told = meeting.exchange("ends", ends, rest=_REST)
                group.name({split_address(ends[me]): rank for rank, ends in enumerate(told) if me in ends})
        if split_address(self.spec.store["store"]) == self._server.address:
            self._server.forget_before(self.spec.epoch)

    def _build(self) -> GlooGroup:
        spec = self.spec
        address = split_address(spec.store["store"])
        meeting = Meeting(address, spec.epoch, spec.view_id, spec.rank, spec.size, spec.timeout)
        owned: list[Inode | Address] = []
        try:
            with self._lock:
                self._meeting = meeting
            return self._connect(meeting, owned)
        except BaseException:
            meeting.close()
            sockets.untrack(owned)
            raise

    def _connect(self, meeting: Meeting, owned: list[Inode | Address]) -> GlooGroup:
        spec = self.spec
        self._proceed()
        device, inode, listener, before = _make_device(self._host)
        if inode is not None:
            owned.append(inode)
            sockets.track(owned)
        with self._lock:
            self.told = not self._given_up
        addresses = meeting.exchange("listener", listener and join_address(listener))
        peers = {split_address(text): rank for rank, text in enumerate(addresses) if text and rank != spec.rank}
        with self._lock:
            self._local = {listener} if listener else set()
            self._remote = set(peers)
        self._proceed()
        owned.extend((*self._local, *self._remote))  # so a fork while Gloo connects closes them, too
        sockets.track(owned)
        make: Any = ProcessGroupGloo
        options = make._Options()  # noqa: SLF001
        options._devices = [device]  # noqa: SLF001
        options._threads = _THREADS  # noqa: SLF001
        options._timeout = timedelta(seconds=spec.timeout)  # noqa: SLF001
        backend = make(meeting.store(), spec.rank, spec.size, options)
        self._proceed()
        links = sockets.connections(self._local, self._remote, before)
        owned.extend(link.inode for link in links)
        sockets.track(owned)

        def give_back() -> None:
            sockets.untrack(owned)
            meeting.close()

        return GlooGroup(spec, backend, links, peers, give_back)

    def _proceed(self) -> None:
        if self._given_up:
            raise GroupError("given up")


def _scarce(size: int) -> bool:
    """True if two groups of that size, with two descriptors a connection, use more than half of the process's descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and 8 * size > limit


def _make_device(host: str) -> tuple[Any, Inode | None, Address | None, frozenset[Inode]]:
    """Make a Gloo device on an interface. Returns it, its listening socket and address, and the sockets that existed before.

    Socket and address are None if they cannot be determined.
    """
    make: Any = ProcessGroupGloo
    with _making_device:
        before = sockets.snapshot()
        device = make.create_device(hostname=host, lazy_init=False)
        new = sockets.listeners(host, before)
    if len(new) != 1:  # not Linux, or another thread began to listen at the same moment
        return device, None, None, before
    inode, address = new.popitem()
    return device, inode, address, before
