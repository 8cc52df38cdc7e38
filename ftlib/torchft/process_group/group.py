"""One group of ftlib, seen as a process group of torch."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import ReduceOp

from ...core.tensors.targets import overlaps
from ...frameworks.base import Group, Operation, OperationKind, Work
from ...frameworks.gloo import check_tensor
from .base import ProcessGroup
from .works import GroupWork

__all__ = ["FrameworkGroup"]

_OPERATIONS = (
    (ReduceOp.SUM, "SUM"),
    (ReduceOp.AVG, "AVG"),
    (ReduceOp.MIN, "MIN"),
    (ReduceOp.MAX, "MAX"),
    (ReduceOp.PRODUCT, "PRODUCT"),
)


class FrameworkGroup(ProcessGroup):
    """The ranks that have met once. Collectives: one thread at a time, the same ones in the same order at all ranks.

    A failed operation aborts the group, so that no rank waits for one that has gone on.
    """

    def __init__(self, group: Group, name: str, timeout: float, *, bulk: bool, closed: Callable[[], None]) -> None:
        """``name``: of the backend. ``timeout``: seconds until operations give up. ``bulk``: all ranks' accelerators work.
        ``closed``: is called once, after the group was closed; it must not refer to this.
        """
        super().__init__(group.rank, group.size)
        self._group, self._name, self._timeout, self._bulk = group, name, timeout, bulk
        self._exchanges = 0
        """All-to-alls of unequal parts until now, which is the same at all ranks."""
        self._why = ""
        self._works: weakref.WeakSet[GroupWork] = weakref.WeakSet()
        self._end = weakref.finalize(self, _close, group, closed, os.getpid())
        self._end.atexit = False  # groups that are open then are closed in order, threads in them first

    # --- see ProcessGroup ------------------------------------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """SUM, AVG (floating point), MIN, MAX or PRODUCT."""
        op = _name_of(opts)
        for tensor in tensors:
            check_tensor(tensor)
            if op == "AVG" and not tensor.is_floating_point():
                raise ValueError(f"AVG is for floating point tensors, not {tensor.dtype}: give ReduceOp.SUM")
        _check_room("allreduce", tensors)
        reduced = [_Staged(tensor, self._near) for tensor in tensors]
        works = self._reduce(reduced, op)

        def finish() -> None:
            for each in reduced:
                if op == "AVG":
                    each.buffer.div_(self._group.size)
            _put_back(reduced)

        return self._under_way(works, finish, tensors, opts)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """As ``allreduce``."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensor_list: Any, opts: Any = None) -> Any:
        """Any dtype."""
        root = 0 if opts is None else opts.rootRank
        _check_room("broadcast", tensor_list)
        staged = [_Staged(tensor, self._near) for tensor in tensor_list]
        works = self._submit(OperationKind.BROADCAST, [each.buffer for each in staged], peer=root)
        return self._under_way(works, lambda: _put_back(staged), tensor_list, opts)

    def allgather(self, output_tensors: Any, input_tensor: Any, opts: Any = None) -> Any:
        """Any dtype."""
        _check_count("allgather", output_tensors, input_tensor)
        for outputs, given in zip(output_tensors, input_tensor, strict=True):
            if len(outputs) != self._group.size:
                raise ValueError(f"allgather: {len(outputs)} outputs for {self._group.size} ranks: give one for each")
            _check_room("allgather", outputs, given.numel())
        rows = [self._rows(tensor) for tensor in input_tensor]
        works = self._submit(OperationKind.ALL_GATHER, [row.view(-1) for row in rows])

        def finish() -> None:
            for row, outputs in zip(rows, output_tensors, strict=True):
                for part, output in zip(row, outputs, strict=True):
                    output.copy_(part.view(output.shape))

        return self._under_way(works, finish, output_tensors, opts)

    def allgather_into_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Any dtype."""
        _check_count("allgather", output_tensors, input_tensors)
        for output, given in zip(output_tensors, input_tensors, strict=True):
            _check_room("allgather", [output], given.numel() * self._group.size)
        rows = [self._rows(tensor) for tensor in input_tensors]
        works = self._submit(OperationKind.ALL_GATHER, [row.view(-1) for row in rows])

        def finish() -> None:
            for row, output in zip(rows, output_tensors, strict=True):
                output.copy_(row.view(output.shape))

        return self._under_way(works, finish, output_tensors, opts)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """By an allreduce of which each rank keeps its part."""
        return self._scatter(output_tensors, [torch.stack(list(inputs)) for inputs in input_tensors], opts)

    def reduce_scatter_tensor_coalesced(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """By an allreduce of which each rank keeps its part."""
        size = self._group.size
        rows = [_plain(each).clone().reshape(size, each.numel() // size) for each in input_tensors]
        return self._scatter(output_tensors, rows, opts)

    def alltoall_base(
        self, output_buffer: Any, input_buffer: Any, output_split_sizes: Any, input_split_sizes: Any, opts: Any = None
    ) -> Any:
        """Any dtype."""
        if not output_split_sizes and not input_split_sizes:
            _check_room("alltoall", [output_buffer], input_buffer.numel())
            given = _plain(input_buffer).to("cpu", copy=True).reshape(-1)
            works = self._submit(OperationKind.ALL_TO_ALL, [given])
            return self._under_way(works, lambda: output_buffer.copy_(given.view(output_buffer.shape)), [output_buffer], opts)
        _check_room("alltoall", [output_buffer])
        given = _on_host(_plain(input_buffer)).contiguous()
        got = torch.empty(output_buffer.shape, dtype=output_buffer.dtype, device="cpu")
        self._exchanges += 1
        works = list(self._exchange(_cut(given, input_split_sizes, self.size()), _cut(got, output_split_sizes, self.size())))
        return self._under_way(works, lambda: output_buffer.copy_(got), [output_buffer], opts)

    def barrier(self, opts: Any = None) -> Any:
        """See ``ProcessGroup``."""
        return self._under_way([self._group.barrier()], lambda: None, None, opts)

    def send(self, tensors: Any, dst_rank: int, tag: int) -> Any:
        """Any dtype."""
        works = [self._group.send(_on_host(_plain(tensor)).contiguous(), dst_rank, tag) for tensor in tensors]
        return self._under_way(works, _nothing, tensors, None)

    def recv(self, tensors: Any, src_rank: int, tag: int) -> Any:
        """Any dtype."""
        _check_room("recv", tensors)
        staged = [_Staged(tensor, _on_host) for tensor in tensors]
        works = [self._group.recv(each.buffer, src_rank, tag) for each in staged]
        return self._under_way(works, lambda: _put_back(staged), tensors, None)

    def getBackendName(self) -> str:  # noqa: N802
        """See ``ProcessGroup``."""
        return self._name

    def size(self) -> int:
        """See torch."""
        return self._group.size

    def set_timeout(self, timeout: timedelta) -> None:
        """For operations that begin from now on."""
        self._timeout = timeout.total_seconds()

    def abort(self) -> None:
        """See ``ProcessGroup``."""
        self.fail("the program asked for it")

    def shutdown(self) -> None:
        """Close the group."""
        self._end()

    def errored(self) -> Exception | None:
        """RuntimeError once it was aborted."""
        return RuntimeError(f"the process group was aborted: {self._why}") if self._why else None

    # --- inside ----------------------------------------------------------------------------------------------------------

    def fail(self, why: str) -> None:
        """Abort; ``why`` is kept if it is the first reason."""
        self._why = self._why or why
        self._group.abort()

    def under_way(self) -> int:
        """Operations that have not ended."""
        return sum(not work.is_completed() for work in list(self._works))

    def _under_way(self, works: Sequence[Work], finish: Callable[[], Any], result: Any, opts: Any) -> GroupWork:
        asked = None if opts is None else getattr(opts, "timeout", None)
        limit = asked.total_seconds() if asked is not None and asked > timedelta() else self._timeout
        work = GroupWork(self, works, finish, result, limit)
        self._works.add(work)
        return work

    def _near(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself where the accelerator takes it, else its values on the host."""
        return tensor if self._bulk and self._group.takes(tensor) else _on_host(tensor)

    def _submit(self, kind: OperationKind, buffers: Sequence[torch.Tensor], **terms: Any) -> list[Work]:
        operations = [Operation(kind, buffer, **terms) for buffer in buffers]
        bulk = [each for each in operations if self._bulk and self._group.takes(each.tensor)]
        if bulk and len(bulk) == len(operations):
            return [self._group.submit_bulk(bulk)]
        return [self._group.submit(each) for each in operations]

    def _reduce(self, staged: Sequence[_Staged], op: str) -> list[Work]:
        op = "SUM" if op == "AVG" else op
        return self._submit(OperationKind.ALLREDUCE, [each.buffer for each in staged], op=op)

    def _rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """A row for each rank, on the host, with this rank's."""
        rows = torch.empty((self._group.size, tensor.numel()), dtype=tensor.dtype, device="cpu")
        rows[self._group.rank].copy_(tensor.detach().reshape(-1))
        return rows

    def _scatter(self, outputs: Any, rows: Sequence[torch.Tensor], opts: Any) -> GroupWork:
        """``rows``: tensors of this group alone, with a row for each rank."""
        op = _name_of(opts)
        _check_count("reduce_scatter", outputs, rows)
        for row, output in zip(rows, outputs, strict=True):
            _check_room("reduce_scatter", [output], row.numel() // self._group.size)
        reduced = [_Staged(row, self._near) for row in rows]
        works = self._reduce(reduced, op)

        def finish() -> None:
            for staged, output in zip(reduced, outputs, strict=True):
                part = staged.buffer[self._group.rank].view(output.shape)
                output.copy_(part / self._group.size if op == "AVG" else part)

        return self._under_way(works, finish, outputs, opts)

    def _exchange(self, given: Sequence[torch.Tensor], got: Sequence[torch.Tensor]) -> Iterator[Work]:
        me = self._group.rank
        got[me].copy_(given[me])
        for peer in range(self._group.size):
            if peer != me and given[peer].numel():
                yield self._group.send(given[peer], peer, -self._exchanges)
            if peer != me and got[peer].numel():
                yield self._group.recv(got[peer], peer, -self._exchanges)


class _Staged:
    """A tensor in a form that operations work on."""

    def __init__(self, tensor: torch.Tensor, near: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._tensor = tensor.detach()
        self.buffer = near(_plain(self._tensor)).contiguous()

    def put_back(self) -> None:
        """Copy results, if operations worked on a copy."""
        if self.buffer is not self._tensor:
            self._tensor.copy_(self.buffer)


def _nothing() -> None:
    """What sends need to finish."""


def _put_back(staged: Sequence[_Staged]) -> None:
    for each in staged:
        each.put_back()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` with memory that holds its values: that of ``x.conj()`` and ``x.conj().imag`` is changed as it is read."""
    return tensor.detach().resolve_conj().resolve_neg()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu()


def _check_count(what: str, outputs: Sequence[Any], inputs: Sequence[Any]) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"{what}: {len(outputs)} outputs for {len(inputs)} inputs: give one for each")


def _check_room(what: str, outputs: Sequence[torch.Tensor], count: int | None = None) -> None:
    """ValueError unless each of these takes a result; of ``count`` elements, if that is given. Before anything is sent: where
    a result has no place, others have gone on.
    """
    for output in outputs:
        if count is not None and output.numel() != count:
            raise ValueError(f"{what}: an output of {list(output.shape)} is for {count} elements: correct its shape")
        if overlaps(output):
            raise ValueError(f"{what}: a tensor of {list(output.shape)} has several elements at one place in memory: clone it")


def _cut(tensor: torch.Tensor, sizes: Sequence[int], count: int) -> Sequence[torch.Tensor]:
    if not sizes:
        sizes = [tensor.shape[0] // count] * count
    if len(sizes) != count or sum(sizes) != tensor.shape[0]:
        raise ValueError(f"alltoall: sizes {list(sizes)} do not cut {tensor.shape[0]} rows for {count} ranks: correct them")
    return torch.split(tensor, list(sizes))


def _name_of(opts: Any) -> str:
    op = ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    for known, name in _OPERATIONS:
        if op == known:  # a ReduceOp knows its RedOpType, not the other way round
            return name
    raise ValueError(f"{op}: choose SUM, AVG, MIN, MAX or PRODUCT")


def _close(group: Group, closed: Callable[[], None], process: int) -> None:
    if os.getpid() == process:  # a forked child has the parent's sockets
        group.close()
        closed()
