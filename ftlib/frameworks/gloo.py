"""Gloo over TCP, the default backend for CPU tensors: ``gloo_build`` builds groups, ``gloo_group`` does their operations."""

from __future__ import annotations

import atexit
import os
import resource
from collections.abc import Callable, Mapping

import torch

from consensus import CarefulLogger
from ftlib.errors import ConfigError
from ftlib.frameworks import sockets
from ftlib.frameworks.background import finish_tasks
from ftlib.frameworks.base import Framework, Group, GroupSpec
from ftlib.frameworks.builder import GroupBuilder
from ftlib.frameworks.gloo_build import GlooBuild
from ftlib.frameworks.rendezvous import StoreServer, interface_address, join_address, split_address

_log = CarefulLogger(__name__)

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
_FINISH = 2.0
"""Seconds that ``close`` waits at most for old groups to be destroyed, which takes tens of milliseconds each."""


class GlooFramework(Framework):
    """Builds ``GlooGroup`` objects; its store serves the views that choose this member as rendezvous host."""

    name = "gloo"

    def __init__(self, facts: Callable[[GroupSpec], Mapping[str, str]] = lambda _spec: {}) -> None:
        """``facts``: what to tell the other ranks of a group on meeting them (see ``GlooGroup.facts``)."""
        self.group: Group | None = None
        self._facts = facts
        self._host = ""
        self._server: StoreServer | None = None
        self._builder = GroupBuilder(self._make, lambda spec: not _scarce(spec.size))
        self._process = os.getpid()

    def start(self, host: str) -> Mapping[str, str]:
        """Start the store; restart it if ``host`` has changed. ConfigError if ``host`` is no address of this machine."""
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
        return {"store": join_address(self._server.address)}

    def _make(self, spec: GroupSpec) -> GlooBuild:
        return GlooBuild(spec, self._host, self._tidy, self._facts)

    def _tidy(self, spec: GroupSpec) -> None:
        """The store of this member need not know of earlier groups than that of ``spec``."""
        if self._server is not None and split_address(spec.store["store"]) == self._server.address:
            self._server.forget_before(spec.epoch)

    def rebuild(self, spec: GroupSpec) -> Group:
        """Meet the other ranks at the store, connect to all of them. GroupError names the missing ranks."""
        if self._server is None:
            raise ConfigError("start the framework before building groups")
        self.group = group = self._builder.rebuild(spec)
        return group  # another thread may have another one by now

    def prepare(self, spec: GroupSpec) -> None:
        """Build the group on a thread of its own (see ``Framework``)."""
        if self._server is not None:
            self._builder.prepare(spec)

    def cancel(self, before: int = 0) -> None:
        """Give up the rebuild under way, if any (see ``Framework``); it raises GroupError at once."""
        self._builder.cancel(before)

    def forget(self, spec: GroupSpec) -> None:
        """See ``Framework``."""
        if self._server is not None:
            self._server.forget(spec)

    def check(self, tensor: torch.Tensor) -> None:
        """See ``check_tensor``."""
        check_tensor(tensor)

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
        if not finish_tasks(_FINISH, again=False):  # of a lifetime before, maybe: one such wait is enough
            _log.warning("operations of an old group are still under way in Gloo")


def _scarce(size: int) -> bool:
    """True if two groups of that size, with two descriptors a connection, use more than half of the process's descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit != resource.RLIM_INFINITY and 8 * size > limit


def check_tensor(tensor: torch.Tensor) -> None:
    """ConfigError unless the tensor is dense, on the CPU or a CUDA device, and of a dtype that Gloo reduces."""
    device = tensor.device.type
    if device == "meta":
        raise ConfigError("a tensor on meta has no data: allocate it with to_empty(device=...), and give it values")
    if device not in ("cpu", "cuda"):
        text = f"this release reduces tensors on the CPU and on CUDA devices, this one is on {device}"
        raise ConfigError(f"{text}: average a copy, tensor.cpu(), and copy the result back")
    if tensor.layout is not torch.strided:
        raise ConfigError(f"gloo reduces dense tensors, this one is {tensor.layout}: call .to_dense() on it")
    if tensor.dtype not in _DTYPES:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in _DTYPES))
        raise ConfigError(f"gloo cannot reduce {tensor.dtype} tensors: convert to one of {names}")
