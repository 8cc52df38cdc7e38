"""Process groups that do nothing, or something else than what they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from consensus import CarefulLogger

from ..work import _DummyWork
from .base import ProcessGroup
from .wrapper import ProcessGroupWrapper

__all__ = [
    "ErrorSwallowingProcessGroupWrapper",
    "FakeProcessGroupWrapper",
    "ManagedProcessGroup",
    "ProcessGroupDummy",
]

logger = CarefulLogger("ftlib")


class ProcessGroupDummy(ProcessGroup):
    """One rank alone, for operations that are to have no effect: every one ends at once, with this rank's own tensors."""

    def __init__(self, rank: int, world: int) -> None:
        """ValueError unless rank 0 of 1."""
        if (rank, world) != (0, 1):
            raise ValueError(f"ProcessGroupDummy({rank}, {world}): there is one rank only: give 0 and 1")
        super().__init__(rank, world)
        self.configure_count = 0
        self.reconfigure_count = 0

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _copied([outputs[0] for outputs in output_tensors], input_tensor, output_tensors)

    def allgather_into_tensor_coalesced(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,  # noqa: ARG002
    ) -> Any:
        """See ``ProcessGroup``."""
        return _copied(output_tensors, input_tensors, output_tensors)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _DummyWork(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _DummyWork(tensors)

    def alltoall_base(
        self,
        output_buffer: Any,
        input_buffer: Any,
        output_split_sizes: Any,  # noqa: ARG002
        input_split_sizes: Any,  # noqa: ARG002
        opts: Any = None,  # noqa: ARG002
    ) -> Any:
        """See ``ProcessGroup``."""
        return _copied([output_buffer], [input_buffer], [output_buffer])

    def barrier(self, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _DummyWork(None)

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _DummyWork(tensor_list)

    def recv(self, tensors: Any, src_rank: int, tag: int) -> Any:  # noqa: ARG002
        """Tensors stay as they are."""
        return _DummyWork(None)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:  # noqa: ARG002
        """See ``ProcessGroup``."""
        return _copied(output_tensors, [inputs[0] for inputs in input_tensors], output_tensors)

    def reduce_scatter_tensor_coalesced(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,  # noqa: ARG002
    ) -> Any:
        """See ``ProcessGroup``."""
        return _copied(output_tensors, input_tensors, output_tensors)

    def send(self, tensors: Any, dst_rank: int, tag: int) -> Any:  # noqa: ARG002
        """Nobody gets it."""
        return _DummyWork(None)

    def get_reconfigure_handle(self) -> str:
        """See ``ProcessGroup``."""
        return f'{{"id": "{self._handle_id()}", "store": ""}}'

    def reconfigure(self, opts: Any) -> Any:  # noqa: ARG002
        """Count."""
        self.reconfigure_count += 1
        return _DummyWork(None)

    def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int) -> None:  # noqa: ARG002
        """Count."""
        self.configure_count += 1

    def getBackendName(self) -> str:  # noqa: N802
        """See ``ProcessGroup``."""
        return "torchft-dummy"

    def set_timeout(self, timeout: timedelta) -> None:
        """Nothing ever takes longer."""


def _copied(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], result: Any) -> _DummyWork:
    for output, given in zip(outputs, inputs, strict=False):
        output.copy_(given.view(output.shape))
    return _DummyWork(result)


class _ErrorSwallowingWork(dist.Work):
    """A work that never fails: its errors go to the group."""

    def __init__(self, pg: ErrorSwallowingProcessGroupWrapper, work: Any, default: Any) -> None:
        """``default``: the future's result where there is none."""
        super().__init__()
        self._group, self._work, self._default = pg, work, default

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True in any case."""
        try:
            self._work.wait(*([] if timeout is None else [timeout]))
        except Exception as error:  # noqa: BLE001 - that is what this class is for
            self._group.report_error(error)
        return True

    def get_future(self) -> Any:
        """A future with the result, or with the default one."""

        def value(done: torch.futures.Future[Any]) -> Any:
            try:
                return done.value()
            except Exception as error:  # noqa: BLE001
                self._group.report_error(error)
                return self._default

        return self._work.get_future().then(value)


class ErrorSwallowingProcessGroupWrapper(ProcessGroupWrapper):
    """An error of an allreduce is not raised: that one and the next ones do nothing until the group is connected anew."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(pg=pg)
        self._error: Exception | None = None

    def reconfigure(self, opts: Any) -> Any:
        """See ``ProcessGroup``; the error is forgotten."""
        self._error = None
        return super().reconfigure(opts)

    def report_error(self, e: Exception) -> None:
        """Do nothing from now on."""
        if self._error is None:
            logger.warning("an allreduce failed, its group does nothing until it is connected anew: %s", e)
        self._error = e

    def error(self) -> Exception | None:
        """The last error."""
        return self._error

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        if self._error is not None:
            return _DummyWork(tensors)
        try:
            return _ErrorSwallowingWork(self, super().allreduce(tensors, opts), tensors)
        except Exception as error:  # noqa: BLE001
            self.report_error(error)
            return _DummyWork(tensors)


class _FailingWork(dist.Work):
    """A work that does its part, and then fails."""

    def __init__(self, work: Any, error: Exception) -> None:
        super().__init__()
        self._work, self._error = work, error

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Raise the error, once the others need this rank no more."""
        self._work.wait(*([] if timeout is None else [timeout]))
        raise self._error

    def get_future(self) -> Any:
        """A future that fails, once the work has ended."""
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._work.get_future().add_done_callback(lambda _: future.set_exception(self._error))
        return future


class FakeProcessGroupWrapper(ProcessGroupWrapper):
    """For tests: an allreduce fails when it is told to."""

    def __init__(self, pg: ProcessGroup) -> None:
        super().__init__(pg=pg)
        self._future_error: Exception | None = None

    def reconfigure(self, opts: Any) -> Any:
        """See ``ProcessGroup``; an error that was ordered is forgotten."""
        self._future_error = None
        return super().reconfigure(opts)

    def report_future_error(self, e: Exception) -> None:
        """Have the next allreduce fail with ``e``, as seen by its future and by ``wait``."""
        self._future_error = e

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        work = super().allreduce(tensors, opts)
        error, self._future_error = self._future_error, None
        return work if error is None else _FailingWork(work, error)


class Reduces(Protocol):
    """What a managed group needs of the manager."""

    _pg: Any

    def allreduce(self, tensor: torch.Tensor, *, reduce_op: Any) -> Any:
        """Reduce a tensor over the replicas."""

    def num_participants(self) -> int:
        """Replicas that count."""

    def participating_rank(self) -> int | None:
        """This replica's rank among them."""


class ManagedProcessGroup(ProcessGroupWrapper):
    """A manager's replicas as ranks: what is reduced goes through ``manager.allreduce``, one tensor at a time.

    All other operations are those of the process group that the manager was given, and fail until the program has connected
    that: a manager connects it to nobody.
    """

    def __init__(self, manager: Reduces) -> None:
        super().__init__(pg=manager._pg)  # noqa: SLF001 - it has no other name
        self._manager = manager

    @property
    def parent(self) -> Any:
        """The process group that the manager was given. RuntimeError if it is connected to nobody."""
        if not self.connected:
            raise RuntimeError(
                "a managed group only has allreduce, which goes through its Manager: that connects the process group which it "
                "was given to nobody. For other operations connect that one, or another one, in the program: "
                "reconfigure_with_store(pg, address, rank, world_size)"
            )
        return self._pg

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """See ``Manager.allreduce``."""
        if len(tensors) != 1:
            raise ValueError(f"a managed group reduces one tensor at a time, not {len(tensors)}: call it for each")
        op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
        return self._manager.allreduce(tensors[0], reduce_op=op)

    def size(self) -> int:
        """Replicas that count; 0 before the manager's first ``start_quorum``."""
        return self._manager.num_participants()

    def rank(self) -> int:
        """This replica's rank among them; -1 for a spare, and before the first ``start_quorum``."""
        rank = self._manager.participating_rank()
        return -1 if rank is None else rank

    def getBackendName(self) -> str:  # noqa: N802
        """That of the manager's process group, connected or not."""
        return "torchft-managed" if self._pg is None else str(self._pg.getBackendName())
