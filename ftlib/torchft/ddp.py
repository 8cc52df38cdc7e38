"""Modules whose gradients are averaged by a ``Manager``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.autograd import Variable
from torch.futures import Future
from torch.nn import parallel

from .manager import Manager
from .replica.managed_work import _ManagedWork

__all__ = ["DistributedDataParallel", "PureDistributedDataParallel"]


class DistributedDataParallel(parallel.DistributedDataParallel):
    """torch's wrapper, whose buckets go through ``manager.allreduce``: all those of a backward pass in one call, beside it."""

    def __init__(self, manager: Manager, module: nn.Module, **kwargs: Any) -> None:
        """``kwargs``: of torch's wrapper. States are equalized by the manager, not here."""
        # Buckets are not to be laid out anew after the first step: a joiner has not made that step.
        super().__init__(module, **{"find_unused_parameters": True, **kwargs, "process_group": _alone()})
        self.register_comm_hook(manager, _Buckets().reduce)


def _alone() -> dist.ProcessGroup:
    """A group of this process alone, for what torch's wrapper does besides reducing buckets."""
    store = c10d.HashStore()
    group = dist.ProcessGroup(store, 0, 1)
    backend = c10d.ProcessGroupGloo(store, 0, 1, timedelta(seconds=60))
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        group._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, backend)  # noqa: SLF001
    return group


class _Buckets:
    """The buckets of one backward pass."""

    def __init__(self) -> None:
        self._open: list[tuple[_ManagedWork, Future[torch.Tensor], torch.Tensor]] = []

    def reduce(self, manager, bucket):  # type: ignore[no-untyped-def] # torch looks at annotations, which are text here
        """Add a bucket to the manager's call. Its future is completed at the end of backward, before torch waits for it."""
        if bucket.index() == 0:  # what is left is of a backward pass that raised
            self._open = []
            Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - torch's own wrappers do so, too
        tensor = bucket.buffer()
        future: Future[torch.Tensor] = Future()
        self._open.append((manager.allreduce(tensor), future, tensor))
        return future

    def _end(self) -> None:
        opened, self._open = self._open, []
        for work, future, tensor in opened:
            work.wait()
            future.set_result(tensor)


class PureDistributedDataParallel(nn.Module):
    """One ``manager.allreduce`` for each gradient, without torch's wrapper; the averages are there when backward returns."""

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        super().__init__()
        self.module = module

        def reduce(parameter: torch.Tensor) -> None:
            if parameter.grad is not None:
                manager.allreduce(parameter.grad)

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(reduce)  # type: ignore[no-untyped-call]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        return self.module(*args, **kwargs)
