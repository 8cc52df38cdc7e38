"""``ProcessGroupWrapper``: a process group that hands all operations on to another one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .base import ProcessGroup
from .meeting import rendezvous

__all__ = ["ProcessGroupWrapper"]

_MINUTE = timedelta(seconds=60)


class ProcessGroupWrapper(ProcessGroup):
    """Hands on to ``parent``. One that was made without ``pg`` has a parent once ``reconfigure`` has made one."""

    def __init__(self, timeout: timedelta = _MINUTE, pg: dist.ProcessGroup | None = None) -> None:
        """``timeout``: how long an operation may take, and connecting."""
        super().__init__()
        self._timeout = timeout
        self._pg: Any = pg

    @property
    def parent(self) -> Any:
        """The process group inside. RuntimeError if there is none yet, or no more."""
        if self._pg is None:
            raise RuntimeError("process group not initialized: call reconfigure_with_store(pg, address, rank, world_size)")
        return self._pg

    @property
    def connected(self) -> bool:
        """Whether the group inside can be used."""
        return self._pg is not None and bool(getattr(self._pg, "connected", True))

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.allgather(output_tensors, input_tensor, opts)

    def allgather_into_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.allgather_into_tensor_coalesced(output_tensors, input_tensors, opts)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.allreduce_coalesced(tensors, opts)

    def alltoall_base(
        self, output_buffer: Any, input_buffer: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.alltoall_base(output_buffer, input_buffer, output_split_sizes, input_split_sizes, opts)

    def barrier(self, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.barrier(opts)

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.broadcast(tensor_list, opts)

    def recv(self, tensors: Any, src_rank: int, tag: int) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.recv(tensors, src_rank, tag)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.reduce_scatter(output_tensors, input_tensors, opts)

    def reduce_scatter_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.reduce_scatter_tensor_coalesced(output_tensors, input_tensors, opts)

    def send(self, tensors: Any, dst_rank: int, tag: int) -> Any:
        """See ``ProcessGroup``."""
        return self.parent.send(tensors, dst_rank, tag)

    def size(self) -> int:
        """Of the group inside."""
        return int(self.parent.size())

    def rank(self) -> int:
        """In the group inside."""
        return int(self.parent.rank())

    def getBackendName(self) -> str:  # noqa: N802
        """Of the group inside."""
        name: str = self.parent.getBackendName()
        return name

    def set_rank_info(self, replica_id: str, group_rank: int, group_world_size: int, global_rank: int | None = None) -> None:
        """See ``ProcessGroup``."""
        super().set_rank_info(replica_id, group_rank, group_world_size, global_rank)
        if isinstance(self._pg, ProcessGroup):
            self._pg.set_rank_info(replica_id, group_rank, group_world_size, global_rank)

    def approach(self, store_addr: str) -> None:
        """See ``ProcessGroup``."""
        if isinstance(self._pg, ProcessGroup):
            self._pg.approach(store_addr)

    def get_reconfigure_handle(self) -> str:
        """See ``ProcessGroup``."""
        handle: str = self.parent.get_reconfigure_handle()
        return handle

    def reconfigure(self, opts: Any) -> Any:
        """See ``ProcessGroup``. ValueError if this group is not among those that ``opts`` lists."""
        rendezvous(opts, self._handle_id())
        return self.parent.reconfigure(opts)

    def abort(self, errored: bool = True) -> None:  # noqa: ARG002 - of torchft's interface: whether it is worth a log line
        """See ``ProcessGroup``."""
        if self._pg is not None:
            self._pg.abort()

    def shutdown(self) -> None:
        """See ``ProcessGroup``."""
        if self._pg is not None:
            self._pg.shutdown()

    def errored(self) -> Exception | None:
        """See ``ProcessGroup``."""
        error: Exception | None = getattr(self._pg, "errored", lambda: None)()
        return error

    def set_timeout(self, timeout: timedelta) -> None:
        """See ``ProcessGroup``."""
        self._timeout = timeout
        if isinstance(self._pg, ProcessGroup):
            self._pg.set_timeout(timeout)

    def _handle_id(self) -> str:
        return self._pg._handle_id() if isinstance(self._pg, ProcessGroup) else super()._handle_id()  # noqa: SLF001

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pg={self._pg})"
