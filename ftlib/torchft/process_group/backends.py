"""Process groups over the frameworks of ftlib: each can be aborted, and connected anew."""

from __future__ import annotations

import atexit
import functools
import json
import os
import threading
import weakref
from datetime import timedelta
from typing import Any

import torch

from ...common.threads import LONGEST
from ...errors import GroupError
from ...frameworks import Framework, Group, GroupSpec, framework_by_name
from ...frameworks.gloo_work import end_abroad
from ..work import _DummyWork
from .group import FrameworkGroup
from .meeting import address_near, rendezvous, split
from .wrapper import ProcessGroupWrapper

__all__ = [
    "ProcessGroupBaby",
    "ProcessGroupBabyGloo",
    "ProcessGroupBabyNCCL",
    "ProcessGroupBabyXCCL",
    "ProcessGroupGloo",
    "ProcessGroupNCCL",
    "ProcessGroupXCCL",
]

_MINUTE = timedelta(seconds=60)
_HERE = "127.0.0.1"


class _Frameworks:
    """Frameworks that all process groups of this process share, as each has a store, and some a process of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[tuple[str, str], tuple[Framework, str]] = {}

    def start(self, name: str, host: str) -> tuple[Framework, str]:
        """The framework, and the address of its store."""
        with self._lock:
            if (name, host) not in self._started:
                framework = framework_by_name(name)
                self._started[name, host] = framework, framework.start(host)["store"]
                atexit.register(end_abroad)  # hence called before the framework's own end, which threads would see as an error
            return self._started[name, host]


_shared = _Frameworks()


class _OverFramework(ProcessGroupWrapper):
    """Its groups are built by a framework, which a subclass names. Before ``reconfigure`` it has none."""

    framework: str
    backend: str
    accelerated = False
    """Whether the framework has an accelerator: it is this group's alone, as its groups have to come one after the other."""

    def __init__(self, timeout: timedelta | float = _MINUTE) -> None:
        """``timeout``: how long an operation may take, and connecting; seconds if it is a number."""
        super().__init__(timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout))
        self._host = _HERE
        self._own: tuple[Framework, str] | None = None
        self._generation = 0

    def approach(self, store_addr: str) -> None:
        """See ``ProcessGroup``."""
        host, port, _ = split(store_addr)
        self._host = address_near(host, port, self._seconds())

    def get_reconfigure_handle(self) -> str:
        """See ``ProcessGroup``. Names a store of this process, which listens on the loopback interface before ``approach``."""
        _, store = self._started()
        return json.dumps(
            {
                "id": self._handle_id(),
                "store": store,
                "generation": self._generation,
                "global_rank": self._global_rank,
            }
        )

    def reconfigure(self, opts: Any) -> Any:
        """See ``ProcessGroup``. RuntimeError with the missing ranks if not all come in time."""
        met = rendezvous(opts, self._handle_id())
        self._drop()
        framework, _ = self._started()
        seconds = self._seconds()
        self._generation = met.generation
        spec = GroupSpec(
            view_id=met.store_addr.partition("/")[2],
            epoch=met.generation if self.accelerated else 0,  # of a shared store, nobody is to delete others' keys
            rank=met.rank,
            size=met.world_size,
            store={"store": met.store_addr.partition("/")[0]},
            timeout=seconds,
        )
        try:
            group = framework.rebuild(spec)
            bulk = self.accelerated and _all_accelerated(group, seconds)
            if self.accelerated:
                framework.settled(spec.epoch)
        except GroupError as error:
            framework.forget(spec)
            raise RuntimeError(f"{error} (timeout after {seconds * 1e3:.0f}ms)") from error
        self._pg = FrameworkGroup(group, self.backend, seconds, bulk=bulk, closed=functools.partial(framework.forget, spec))
        return _DummyWork(None)

    def shutdown(self) -> None:
        """Leave the members; what is under way fails, here and at the others."""
        self._drop()
        own, self._own = self._own, None
        if own is not None:
            own[0].close()

    def getBackendName(self) -> str:  # noqa: N802
        """See ``ProcessGroup``."""
        return self.backend

    def _started(self) -> tuple[Framework, str]:
        if not self.accelerated:
            return _shared.start(self.framework, self._host)
        if self._own is None:
            framework = framework_by_name(self.framework)
            self._own = framework, framework.start(self._host)["store"]
            weakref.finalize(self, _close, framework, os.getpid())
        return self._own

    def _seconds(self) -> float:
        return min(self._timeout.total_seconds(), LONGEST)

    def _drop(self) -> None:
        pg, self._pg = self._pg, None
        if pg is not None:
            pg.shutdown()


class ProcessGroupGloo(_OverFramework):
    """Gloo. Tensors of a device go through the host."""

    framework = "gloo"
    backend = "torchft-gloo"


class ProcessGroupNCCL(_OverFramework):
    """NCCL for allreduce and broadcast of CUDA tensors where all ranks have it, Gloo for the rest."""

    framework = "nccl"
    backend = "torchft-nccl"
    accelerated = True


class ProcessGroupXCCL(_OverFramework):
    """For Intel's GPUs, whose library is not used: their tensors go through the host, by Gloo."""

    framework = "gloo"
    backend = "torchft-xccl"


class ProcessGroupBaby(_OverFramework):
    """Groups in a process of their own, which can be killed whatever hangs there."""

    def num_active_work(self) -> int:
        """Operations that have not ended."""
        return 0 if self._pg is None else self._pg.under_way()


class ProcessGroupBabyGloo(ProcessGroupBaby):
    """Gloo in a process of its own."""

    framework = "isolated:gloo"
    backend = "torchft-baby-gloo"


class ProcessGroupBabyNCCL(ProcessGroupBaby):
    """NCCL in a process of its own."""

    framework = "isolated:nccl"
    backend = "torchft-baby-nccl"
    accelerated = True


class ProcessGroupBabyXCCL(ProcessGroupBaby):
    """As ``ProcessGroupXCCL``, in a process of its own."""

    framework = "isolated:gloo"
    backend = "torchft-baby-xccl"


def _all_accelerated(group: Group, seconds: float) -> bool:
    """Whether all ranks' accelerators work; agreed among them."""
    start = group.accelerator_start(seconds)
    if start is not None:
        start.wait(seconds)
    mine = torch.tensor([int(group.accelerated)], dtype=torch.uint8, device="cpu")
    if not group.allreduce(mine, "MIN").wait(seconds):
        raise GroupError("the ranks could not agree whether to use their accelerators in time")
    return bool(mine)


def _close(framework: Framework, process: int) -> None:
    if os.getpid() == process:
        framework.close()
