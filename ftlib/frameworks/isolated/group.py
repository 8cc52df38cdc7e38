"""A group that lives in a process of its own: whatever hangs there, this one is free of it by a SIGKILL."""

from __future__ import annotations

from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.base import Group, GroupSpec, Operation, OperationKind, Work, check_parts
from ftlib.frameworks.gloo_work import FailedWork

from .group_process import GroupProcess
from .records import REDUCTIONS, carried


class IsolatedGroup(Group):
    """The group of one view, in a child. Collectives: one thread at a time, the same ones in the same order at all ranks."""

    def __init__(self, spec: GroupSpec, child: GroupProcess) -> None:
        self.rank, self.size = spec.rank, spec.size
        self._child = child

    def __repr__(self) -> str:
        state = "open" if self._child.usable else "ended"
        return f"<IsolatedGroup rank {self.rank} of {self.size} in process {self._child.pid} {state}>"

    @property
    def pid(self) -> int:
        """Of the process that has the group."""
        return self._child.pid

    def submit(self, operation: Operation) -> Work:
        """Have the child begin it, in the order of the calls. Memory that is not shared with it is copied there and back."""
        kind, tensor = operation.kind, operation.tensor
        if kind is OperationKind.ALLREDUCE and (operation.op not in REDUCTIONS or not operation.op):
            raise ConfigError(f"unknown operation {operation.op!r}: choose one of {', '.join(filter(None, REDUCTIONS))}")
        if kind is OperationKind.ALLREDUCE and not carried(tensor.dtype):
            return FailedWork(GroupError(f"rank {self.rank} of {self.size}: tensors of {tensor.dtype} cannot be reduced"))
        if kind in (OperationKind.ALL_TO_ALL, OperationKind.ALL_GATHER):
            check_parts(operation, self.size)
        return self._child.run(operation)

    def abort(self) -> None:
        """Have the child cut its connections, or kill it: see ``GroupProcess.close``."""
        self._child.close("the group was aborted")

    def close(self) -> None:
        """End the child; what is under way fails."""
        self._child.close("the group is closed")
