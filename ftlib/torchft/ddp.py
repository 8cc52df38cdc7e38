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

from .manager import Manager, WorldSizeMode
from .replica.managed_work import _ManagedWork

__all__ = ["DistributedDataParallel", "PureDistributedDataParallel"]


class DistributedDataParallel(parallel.DistributedDataParallel):
    """torch's wrapper, whose buckets go through ``manager.allreduce``: all those of a backward pass in one call, beside it."""

    def __init__(self, manager: Manager, module: nn.Module, **kwargs: Any) -> None:
        """``kwargs``: of torch's wrapper. States are equalized by the manager, not here."""
        buckets = _Buckets(manager, module)
        # Buckets are not to be laid out anew after the first step: a joiner has not made that step.
        super().__init__(module, **{"find_unused_parameters": True, **kwargs, "process_group": _Alone(buckets)})
        self.register_comm_hook(None, buckets.reduce)


class _Buckets:
    """What one backward pass gives to the manager's call."""

    def __init__(self, manager: Manager, module: nn.Module) -> None:
        self._manager = manager
        ignored = frozenset(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        named = module.named_parameters()
        self._trained = [each for name, each in named if each.requires_grad and name not in ignored]
        """Those that torch's wrapper averages, in its order."""
        self._open: list[tuple[_ManagedWork, Future[torch.Tensor], torch.Tensor]] = []
        self._used: tuple[_ManagedWork, torch.Tensor, torch.Tensor] | None = None
        """The call, what is averaged, and torch's own map of the parameters that were used."""

    @property
    def open(self) -> bool:
        """Whether a backward pass has given something, and has not ended."""
        return bool(self._open)

    def reduce(self, _state, bucket):  # type: ignore[no-untyped-def] # torch looks at annotations, which are text here
        """Add a bucket to the manager's call. Its future is completed at the end of backward, before torch waits for it."""
        if bucket.index() == 0:  # what is left is of a backward pass that raised
            self._open, self._used = [], None
            Variable._execution_engine.queue_callback(self._end)  # noqa: SLF001 - torch's own wrappers do so, too
        tensor = bucket.buffer()
        future: Future[torch.Tensor] = Future()
        self._open.append((self._manager.allreduce(tensor), future, tensor))
        return future

    def find_used(self, used: torch.Tensor) -> None:
        """Add the map of the parameters that this replica used, not 0 each. Behind all buckets.

        A gradient that any replica has, of this pass or one that was kept, is averaged: torch writes the average to ``.grad``
        where the map says so. A replica that joined has none of those that the others kept. What a spare sends changes nothing,
        its map neither: where there may be spares, all have used all.
        """
        if self._manager._world_size_mode is WorldSizeMode.FIXED_WITH_SPARES:  # noqa: SLF001 - one package
            used.fill_(1)
            return
        has = [parameter.grad is not None for parameter in self._trained]
        counted = used.logical_or(torch.tensor(has, device=used.device)).float()
        self._used = self._manager.allreduce(counted), counted, used

    def _end(self) -> None:
        opened, self._open = self._open, []
        found, self._used = self._used, None
        for work, future, tensor in opened:
            work.wait()
            future.set_result(tensor)
        if found is not None:
            work, counted, used = found
            work.wait()
            used.copy_(counted != 0)


class _Alone(dist.ProcessGroup):
    """A group of this process alone, for what torch's wrapper does besides reducing buckets.

    In a backward pass it reduces the map of used parameters: that one is of all replicas.
    """

    def __init__(self, buckets: _Buckets) -> None:
        super().__init__(0, 1)  # type: ignore[call-arg] # it has this one, too
        self._buckets = buckets
        backend = c10d.ProcessGroupGloo(c10d.HashStore(), 0, 1, timedelta(seconds=60))
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, backend)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # type: ignore[override]
        """See ``ProcessGroup``. A map of a backward pass is there when that pass ends, before torch looks at it."""
        work = super().allreduce(tensors, dist.AllreduceOptions() if opts is None else opts)
        if self._buckets.open:
            work.wait()  # the map is written again
            for used in tensors:
                self._buckets.find_used(used)
        return work


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
