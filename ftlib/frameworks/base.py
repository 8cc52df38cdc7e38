"""What a communication backend must offer: build a group for a view, run operations on it, abort it at once.

A ``Framework`` lives as long as the process, a ``Group`` as long as a view. Groups are built on the rebuild thread while the
training thread may still wait in an operation of the old group; ``abort`` is what wakes it.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from ftlib.common.memory import room
from ftlib.errors import GroupError
from ftlib.frameworks.background import start_task

_SLICE = 1.0
"""Seconds of one wait for an operation that a future completes with."""
_LOOK = 0.005
"""Seconds between two looks whether an operation that failed has ended."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """All that building one group needs. Equal at all members but for ``rank``."""

    view_id: str
    """Unique a view: prefix of every key in the store, so that no attempt reads another's keys."""
    epoch: int
    rank: int
    size: int
    store: Mapping[str, str]
    """What the member that hosts this group's rendezvous advertised (see ``Framework.start``)."""
    timeout: float
    """Seconds until building, or one operation, gives up."""


class Work(ABC):
    """One operation under way."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Block at most ``timeout`` seconds. True: done. False: still under way. Raises ``GroupError`` if it failed."""

    @abstractmethod
    def done(self) -> bool:
        """Whether it ended, well or not: nothing writes into its tensor any more."""

    def future(self) -> torch.futures.Future[Any]:
        """Completes when the operation has physically ended: with None, or with the ``GroupError`` that it failed with.

        Not when it was enqueued, as the futures of some process groups of torch.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        start_task("future", functools.partial(self._complete, future))
        return future

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        failure: GroupError | None = None
        while failure is None:
            try:
                if self.wait(_SLICE):
                    break
            except GroupError as error:
                failure = error
        while not self.done():  # it failed for whoever waits, and may still write
            time.sleep(_LOOK)
        if failure is None:
            future.set_result(None)
        else:
            future.set_exception(failure)


class OperationKind(Enum):
    """What an operation does."""

    ALLREDUCE = "allreduce"
    BROADCAST = "broadcast"
    SEND = "send"
    RECV = "recv"


class Operation(NamedTuple):
    """One operation on a contiguous tensor, which it works on in place."""

    kind: OperationKind
    tensor: torch.Tensor
    op: str = ""
    """Of a reduction: SUM, MIN, MAX or PRODUCT."""
    peer: int = 0
    """The root of a broadcast; the rank to send to, or to receive from."""
    tag: int = 0
    """Of a send or receive."""


class Group(ABC):
    """A process group of one view. A backend has one way in, ``submit``; the methods that name an operation lead there."""

    rank: int
    size: int

    @abstractmethod
    def submit(self, operation: Operation) -> Work:
        """Begin ``operation``, and return at once. ConfigError where this backend has none like it.

        An allreduce is bit-identical at all ranks. Sends and receives are safe beside collectives of other threads.
        """

    def allreduce(self, tensor: torch.Tensor, op: str = "SUM") -> Work:
        """Reduce a contiguous tensor over all ranks (SUM, MIN, MAX, PRODUCT)."""
        return self.submit(Operation(OperationKind.ALLREDUCE, tensor, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Copy the root's contiguous tensor to all ranks."""
        return self.submit(Operation(OperationKind.BROADCAST, tensor, peer=root))

    def barrier(self) -> Work:
        """Done once every rank has entered."""
        return self.submit(Operation(OperationKind.ALLREDUCE, torch.zeros(1, dtype=torch.uint8), "MAX"))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        """Send a contiguous tensor to one rank."""
        return self.submit(Operation(OperationKind.SEND, tensor, peer=to, tag=tag))

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """Receive into a contiguous tensor from one rank."""
        return self.submit(Operation(OperationKind.RECV, tensor, peer=source, tag=tag))

    @abstractmethod
    def abort(self) -> None:
        """Make every operation under way here fail within milliseconds, and those of the peers too. Idempotent.

        Nothing completes at this rank after ``abort`` returned and its works have ended.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back the resources of a group that is idle or aborted. Idempotent."""


class Framework(ABC):
    """A backend. The names ``rebuild`` and ``abort_communicator`` are those of FTLib's design."""

    name: str
    group: Group | None = None
    """The newest group."""

    @abstractmethod
    def start(self, host: str) -> Mapping[str, str]:
        """Start what this member offers to others for rendezvous on interface address ``host``.

        Returns the facts to advertise with the member, e.g. ``{"store": "127.0.0.1:41231"}``.
        """

    @abstractmethod
    def rebuild(self, spec: GroupSpec) -> Group:
        """Build the group and connect it to every rank before returning. GroupError on failure or timeout."""

    def prepare(self, spec: GroupSpec) -> None:  # noqa: B027 - a hint
        """Begin to build a group that ``rebuild`` may be asked for soon, and return at once; it may never be.

        It takes part in nothing before. One at a time: what was prepared for another ``spec`` is dropped, as ``rebuild`` for
        another and ``cancel`` drop it.
        """

    def cancel(self, before: int = 0) -> None:  # noqa: B027 - best effort: a rebuild has a deadline anyway
        """Make a ``rebuild`` under way in another thread fail soon.

        With ``before`` only if it is for an earlier epoch; and any such one that begins later, until the next ``start``.
        """

    def abort_communicator(self) -> None:
        """Abort the newest group, if any."""
        if self.group is not None:
            self.group.abort()

    def allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements, not initialized, in memory that operations of this backend work on best."""
        return room(count, dtype)

    @abstractmethod
    def check(self, tensor: torch.Tensor) -> None:
        """ConfigError naming the remedy where this backend cannot reduce such a tensor (device, dtype, layout)."""

    @abstractmethod
    def close(self) -> None:
        """Give back everything. Idempotent."""
