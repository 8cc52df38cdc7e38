"""``ProcessGroup``: torch's interface, and what lets a group change its members."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, NoReturn, Self, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import BroadcastOptions

from .meeting import reconfigure_with_store

__all__ = ["ProcessGroup"]


class ProcessGroup(dist.ProcessGroup):
    """A process group whose ranks may change: ``reconfigure`` connects it anew. All operations are those of a subclass.

    Tensors and options as in torch.distributed; each operation returns a ``torch.distributed.Work``.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg] # it takes these two as well
        self._group_name: str | None = None
        self._id = uuid.uuid4().hex
        self._replica_id: str | None = None
        self._global_rank: int | None = None

    # --- operations ------------------------------------------------------------------------------------------------------

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Any:
        """Fill each list of tensors, one for each rank, with the ranks' input."""
        self._lacks("allgather", output_tensors, input_tensor, opts)

    def allgather_into_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Fill each output, which is as large as all ranks' inputs together."""
        self._lacks("allgather_into_tensor_coalesced", output_tensors, input_tensors, opts)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors in place. ``opts``: AllreduceOptions or a ReduceOp."""
        self._lacks("allreduce", tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce tensors in place, together."""
        self._lacks("allreduce_coalesced", tensors, opts)

    def alltoall_base(
        self, output_buffer: Any, input_buffer: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> Any:
        """Send a part of the input, cut at its first dimension, to each rank. Sizes: empty lists for equal parts."""
        self._lacks("alltoall_base", output_buffer, input_buffer, output_split_sizes, input_split_sizes, opts)

    def barrier(self, opts: Any = None) -> Any:
        """Done once all ranks have entered."""
        self._lacks("barrier", opts)

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Any:
        """Copy tensors of ``opts.rootRank`` to all ranks."""
        self._lacks("broadcast", tensor_list, opts)

    def broadcast_one(self, tensor: torch.Tensor, root: int) -> Any:
        """Copy one tensor of rank ``root`` to all ranks."""
        options = BroadcastOptions()
        options.rootRank = root
        return self.broadcast([tensor], options)

    def recv(self, tensors: Any, src_rank: int, tag: int) -> Any:
        """Receive tensors from a rank."""
        self._lacks("recv", tensors, src_rank, tag)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Reduce lists of tensors, one for each rank; each rank gets its own."""
        self._lacks("reduce_scatter", output_tensors, input_tensors, opts)

    def reduce_scatter_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Reduce inputs; each rank gets its part of each."""
        self._lacks("reduce_scatter_tensor_coalesced", output_tensors, input_tensors, opts)

    def send(self, tensors: Any, dst_rank: int, tag: int) -> Any:
        """Send tensors to a rank."""
        self._lacks("send", tensors, dst_rank, tag)

    def _allgather_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Any:
        """torch.distributed.all_gather_into_tensor."""
        return self.allgather_into_tensor_coalesced([output], [input_], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input_: torch.Tensor, opts: Any = None) -> Any:
        """torch.distributed.reduce_scatter_tensor."""
        return self.reduce_scatter_tensor_coalesced([output], [input_], opts)

    # --- members ---------------------------------------------------------------------------------------------------------

    @property
    def supports_reconfigure(self) -> bool:
        """True."""
        return True

    def set_rank_info(
        self,
        replica_id: str,
        group_rank: int,  # noqa: ARG002 - of torchft's interface; only its logs use it
        group_world_size: int,  # noqa: ARG002
        global_rank: int | None = None,
    ) -> None:
        """Say who this rank is, for logs and for the handle."""
        self._replica_id, self._global_rank = replica_id, global_rank

    def approach(self, store_addr: str) -> None:
        """The others will meet through the store at ``host:port/prefix``: be reachable for those who reach that."""

    def get_reconfigure_handle(self) -> str:
        """Word of this rank for ``ReconfigureOptions.handles``, in which all ranks' are listed."""
        self._lacks("get_reconfigure_handle")

    def reconfigure(self, opts: Any) -> Any:
        """Leave the old members, and connect to those whose handles ``opts`` lists; returns once that is done."""
        self._lacks("reconfigure", opts)

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int) -> None:
        """``reconfigure_with_store`` by its older name."""
        self.set_rank_info(replica_id, rank, world_size)
        reconfigure_with_store(self, store_addr, rank, world_size)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """For torch's registry."""
        self._lacks("getBackendName")

    def abort(self) -> None:
        """Make what is under way fail now."""

    def shutdown(self) -> None:
        """Leave the members. ``reconfigure`` may follow."""

    def errored(self) -> Exception | None:
        """Why the group has to be connected anew; None if nothing is known."""
        return None

    def set_timeout(self, timeout: timedelta) -> None:
        """How long an operation may take, and connecting."""
        self._lacks("set_timeout", timeout)

    # --- torch's registry ------------------------------------------------------------------------------------------------

    def register(self, name: str) -> Self:
        """Enter this group in torch's registry, for functional collectives; once, under a name that no other group has.

        torch.distributed must be initialized. It is registered as a group of this process alone, whoever its ranks are.
        """
        backend = f"{self.getBackendName()}:{name}"
        devices = ["cpu", *(each for each in ("cuda", "xpu") if getattr(torch, each).is_available())]

        def create(*_: object) -> ProcessGroup:
            return self

        dist.Backend.register_backend(backend, create, devices=devices)
        group: Any = dist.new_group(ranks=[dist.get_rank()], backend=backend, group_desc=backend, timeout=timedelta(seconds=60))
        return cast("Self", group)

    def unregister(self) -> None:
        """Take it out of torch's registry."""
        dist.destroy_process_group(self)

    @property
    def group_name(self) -> str:
        """In torch's registry; ValueError before ``register``."""
        if self._group_name is None:
            raise ValueError("this process group has no name yet: call register(name)")
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _handle_id(self) -> str:
        return self._id

    def _lacks(self, what: str, *_: object) -> NoReturn:
        raise NotImplementedError(f"{type(self).__name__} does not support {what}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
