"""torch's process groups over the processes of one replica, which can be aborted: what FSDP and the like communicate by.

A backend of ``torch.distributed`` named ``ftlib``: each group is one of Gloo whose sockets are known
(``frameworks/gloo_build``). If a process of the replica is lost, all of them are aborted, and whatever waits in one raises
``ReplicaLost``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore, ProcessGroupGloo  # type: ignore[attr-defined]

from ...errors import GroupError, ReplicaLost
from ...frameworks.base import GroupSpec
from ...frameworks.gloo_build import GlooBuild
from ...frameworks.gloo_group import GlooGroup

BACKEND = "ftlib"
_FOREIGN = (RuntimeError, GroupError)
_ADVICE = "This is typically caused by"
"""The rest of Gloo's error text, from here on, helps nobody."""


class TorchGroups:
    """All of torch's groups in this process, of which there are as many as its meshes have dimensions."""

    def __init__(self, lost: Callable[[ReplicaLost], None]) -> None:
        """``lost``: called with the error of an operation that failed: a replica whose processes disagree cannot go on."""
        self._lost = lost
        self._groups: list[GlooGroup] = []
        self._lock = threading.Lock()
        self._failure: ReplicaLost | None = None
        self._numbers = itertools.count(1)
        self._where = ""
        self._host = ""
        self._timeout = 0.0

    def begin(self, store: Any, address: str, host: str, shard: int, shards: int, timeout: float) -> None:
        """Make this replica's processes the world of ``torch.distributed``, each with its shard for a rank.

        ``store``: of torch, reachable at ``address``. ``host``: the interface to listen at.
        """
        self._where, self._host, self._timeout = address, host, timeout
        make = functools.partial(self._make)
        dist.Backend.register_backend(BACKEND, make, extended_api=True, devices=["cpu"])
        dist.init_process_group(BACKEND, store=store, rank=shard, world_size=shards, timeout=timedelta(seconds=timeout))

    def _make(self, options: Any, _more: Any) -> _TorchGroup:
        spec = GroupSpec(
            f"torch-{options.group_id}", 1, options.group_rank, options.group_size, {"store": self._where}, self._timeout
        )
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        inner = None
        if spec.size > 1:
            build = GlooBuild(spec, self._host)
            build.start()
            try:
                inner = build.wait()
            except GroupError as error:
                raise self.failed(error) from None
            with self._lock:
                self._groups.append(inner)
        return _TorchGroup(spec, inner, self)

    def failed(self, error: Exception) -> ReplicaLost:
        """An operation has failed with ``error``. Returns what to raise: the first reason."""
        with self._lock:
            first = self._failure is None
            if self._failure is None:
                text = str(error).partition(_ADVICE)[0].strip()
                self._failure = ReplicaLost(f"an operation among the processes of this replica failed, so it ends: {text}")
            failure = self._failure
        if first:
            self._lost(failure)
            self.abort(failure)
        return failure

    def abort(self, failure: ReplicaLost) -> None:
        """The replica is lost: end all that is under way, here and at the other processes. Any thread. Idempotent."""
        with self._lock:
            self._failure = self._failure or failure
            groups = list(self._groups)
        for group in groups:
            group.abort()
            _keep(group)

    def close(self) -> None:
        """Release everything. Idempotent."""
        with self._lock:
            groups, self._groups = self._groups, []
        for group in groups:
            group.close()


def _keep(group: GlooGroup) -> None:
    """Never destroy what Gloo has of an aborted group. The destructor waits for operations under way, and Gloo forgets one now
    and then: that one ends at its timeout, and so long the program's thread would wait, as it lets go of its model or ends.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group.backend))


class _TorchWork(dist.Work):
    """One operation under way."""

    def __init__(self, inner: Any, owner: TorchGroups, result: Any) -> None:
        super().__init__()
        self._inner, self._owner, self._result = inner, owner, result

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it has ended. ReplicaLost if it failed."""
        try:
            return bool(self._inner.wait() if timeout is None or timeout <= timedelta() else self._inner.wait(timeout))
        except _FOREIGN as error:
            raise self._owner.failed(error) from None

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return bool(self._inner.is_completed() and self._inner.is_success())

    def result(self) -> Any:
        """The tensors, once it has ended."""
        self.wait()
        return self._result

    def synchronize(self) -> None:
        """As ``wait``."""
        self.wait()

    def block_current_stream(self) -> None:
        """As ``wait``."""
        self.wait()

    def get_future(self) -> Any:
        """A future of torch's; its error is Gloo's own."""
        return self._inner.get_future()


class _TorchGroup(dist.ProcessGroup):
    """One group. Every operation is Gloo's."""

    def __init__(self, spec: GroupSpec, inner: GlooGroup | None, owner: TorchGroups) -> None:
        """``inner``: None if this process is alone."""
        super().__init__(spec.rank, spec.size)  # type: ignore[call-arg] # it takes these two as well
        self._inner, self._owner = inner, owner
        store, made = HashStore(), dist.ProcessGroup.BackendType.GLOO
        backend = ProcessGroupGloo(store, 0, 1, timedelta(seconds=spec.timeout)) if inner is None else inner.backend
        # A group of torch around it has all operations by all their names, whichever this version of torch calls.
        self._whole: Any = dist.ProcessGroup(store, spec.rank, spec.size)
        self._whole._set_default_backend(made)  # noqa: SLF001 - as torch does it
        self._whole._register_backend(torch.device("cpu"), made, backend)  # noqa: SLF001 - as torch does it
        self._name = spec.view_id
        self._description = ""

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """For torch's registry."""
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> Any:
        """The name that torch gave it."""
        return self._name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    @property
    def group_desc(self) -> str:
        """What torch says that it is for."""
        return self._description

    def abort(self) -> None:
        """End what is under way."""
        if self._inner is not None:
            self._inner.abort()

    def shutdown(self) -> None:
        """Leave the group."""
        self.abort()

    def _begin(self, name: str, result: Any, *given: Any) -> _TorchWork:
        if given and given[-1] is None:
            given = given[:-1]
        try:
            return _TorchWork(getattr(self._whole, name)(*given), self._owner, result)
        except _FOREIGN as error:
            if self._inner is not None and self._inner.broken() is not None:
                raise self._owner.failed(error) from None
            raise


def _operation(name: str) -> Callable[..., _TorchWork]:
    """``ProcessGroup.name`` of torch, for a class that torch calls by these names."""

    def begin(self: _TorchGroup, *given: Any) -> _TorchWork:
        return self._begin(name, given[0] if given else None, *given)

    return begin


_NAMES = ["allreduce", "allreduce_coalesced", "broadcast", "allgather", "allgather_coalesced", "_allgather_base", "reduce"]
_NAMES += ["allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "all_to_all_single"]
_NAMES += ["reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced", "reduce_scatter_single"]
_NAMES += ["reduce_scatter_single_coalesced", "alltoall", "alltoall_base", "gather", "scatter", "send", "recv"]
_NAMES += ["recv_anysource", "barrier"]
for _name in _NAMES:
    if hasattr(dist.ProcessGroup, _name):  # some are newer than others
        setattr(_TorchGroup, _name, _operation(_name))
