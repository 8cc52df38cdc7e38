"""The interface of a communication backend: build a group for a view, run operations on it, abort it at once.

A ``Framework`` lives as long as the process, a ``Group`` as long as a view. Groups are built on the rebuild thread while the
training thread may still wait in an operation of the old group; ``abort`` wakes the training thread.
"""

from __future__ import annotations

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch

from ftlib.common.devices import device_at, place_of
from ftlib.common.memory import room
from ftlib.errors import ConfigError, GroupError
from ftlib.frameworks.background import start_task

_SLICE = 1.0
"""Seconds of one wait for an operation that a future completes with."""
_LOOK = 0.005
"""Seconds between two looks whether an operation that failed has ended."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """All that building one group needs. Equal at all members but for ``rank``."""

    view_id: str
    """Unique per view: prefix of every key in the store, so that no attempt reads another's keys."""
    epoch: int
    rank: int
    size: int
    store: Mapping[str, str]
    """The facts advertised by the member that hosts this group's rendezvous (see ``Framework.start``)."""
    timeout: float
    """Seconds until building, or one operation, gives up."""


class Work(ABC):
    """One operation under way."""

    @abstractmethod
    def wait(self, timeout: float) -> bool:
        """Block at most ``timeout`` seconds. True: done. False: still under way. Raises ``GroupError`` if it failed."""

    @abstractmethod
    def done(self) -> bool:
        """True once the operation has ended, with or without an error."""

    def land(self, timeout: float) -> bool:
        """As ``wait``. Where it returns True, the result is in the tensor: a copy to its device has ended, not only begun."""
        return self.wait(timeout)

    def future(self) -> torch.futures.Future[Any]:
        """A future that completes when the operation has physically ended: with None, or with its ``GroupError``. A device's
        own error passes to it, too.

        Futures of some process groups of torch complete earlier, when the operation is enqueued.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        start_task("future", functools.partial(self._complete, future))
        return future

    def _complete(self, future: torch.futures.Future[Any]) -> None:
        failure: Exception | None = None
        while failure is None:
            try:
                if self.land(_SLICE):
                    break
            except GroupError as error:
                failure = error
                while not self.done():  # it may still write
                    time.sleep(_LOOK)
            except Exception as error:  # noqa: BLE001 - a device's: whoever waits for the future gets it
                failure = error
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
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"


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


def check_parts(operation: Operation, size: int) -> None:
    """ConfigError unless the tensor of an ``all_to_all`` or ``all_gather`` has equal parts for ``size`` ranks."""
    count = operation.tensor.numel()
    if count % size:
        text = f"{operation.kind.value}: {count} elements have no equal parts for {size} ranks"
        raise ConfigError(f"{text}: pad the tensor to a multiple of {size}")


class Group(ABC):
    """A process group of one view. A backend implements only ``submit``; the methods named after an operation call it."""

    rank: int
    size: int

    @property
    def accelerated(self) -> bool:
        """True if this member's accelerator works, so that ``submit_bulk`` may be used once all members say so."""
        return False

    @property
    def launches_at_once(self) -> bool:
        """True if ``submit_bulk`` does not wait for the device."""
        return True

    def takes(self, tensor: torch.Tensor) -> bool:  # noqa: ARG002
        """Whether operations on such a tensor may go by ``submit_bulk``."""
        return False

    def allocate_at(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements on a device, not initialized, in memory that ``submit_bulk`` works on best."""
        return device_at(place).empty(count, dtype)

    def accelerator_start(self, seconds: float) -> Work | None:  # noqa: ARG002
        """The start of this member's accelerator, to wait for ``seconds`` at most; it never fails.

        None if there is nothing to wait for: it works, will never work, or its start is known to take longer.
        """
        return None

    def submit_bulk(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Work:  # noqa: ARG002
        """Launch operations on the accelerator, together, and return without waiting for peers.

        Only if all members do so with equal sizes: whether they all can is for the caller to find out. Only tensors for which
        ``takes`` is true. A ``Work`` that fails if the accelerator cannot launch them any more.

        ``after``: enqueues, on the stream of the operations, what comes after them and belongs to the same ``Work``.
        """
        raise ConfigError("this group has no accelerator: use submit")

    @abstractmethod
    def submit(self, operation: Operation) -> Work:
        """Begin ``operation``, and return at once. ConfigError if this backend does not support it.

        An allreduce is bit-identical at all ranks. Sends and receives are safe beside collectives of other threads.
        A backend may bound how many collectives are under way at a time, and wait here until one of them has ended (1,024 in
        isolated groups). A send or receive never waits for another operation.
        ConfigError for an ``all_to_all`` or ``all_gather`` of a tensor that has no equal parts for all ranks.
        """

    def allreduce(self, tensor: torch.Tensor, op: str = "SUM") -> Work:
        """Reduce a contiguous tensor over all ranks (SUM, MIN, MAX, PRODUCT)."""
        return self.submit(Operation(OperationKind.ALLREDUCE, tensor, op))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Copy the root's contiguous tensor to all ranks."""
        return self.submit(Operation(OperationKind.BROADCAST, tensor, peer=root))

    def all_to_all(self, tensor: torch.Tensor) -> Work:
        """Exchange the equal parts of a contiguous tensor, one for each rank: part ``i`` goes to rank ``i``, and is replaced by
        the part that rank ``i`` has for this one.
        """
        return self.submit(Operation(OperationKind.ALL_TO_ALL, tensor))

    def all_gather(self, tensor: torch.Tensor) -> Work:
        """Fill the equal parts of a contiguous tensor, one for each rank: this rank's own is sent, the others are received."""
        return self.submit(Operation(OperationKind.ALL_GATHER, tensor))

    def barrier(self) -> Work:
        """Done once every rank has entered."""
        return self.submit(Operation(OperationKind.ALLREDUCE, torch.zeros(1, dtype=torch.uint8, device="cpu"), "MAX"))

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> Work:
        """Send a contiguous tensor to one rank."""
        return self.submit(Operation(OperationKind.SEND, tensor, peer=to, tag=tag))

    def recv(self, tensor: torch.Tensor, source: int, tag: int) -> Work:
        """Receive into a contiguous tensor from one rank."""
        return self.submit(Operation(OperationKind.RECV, tensor, peer=source, tag=tag))

    @abstractmethod
    def abort(self) -> None:
        """Make every operation under way fail within milliseconds, here and at the peers. Idempotent.

        Once ``abort`` has returned and the group's works have ended, nothing completes at this rank any more.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the resources of an idle or aborted group. Idempotent."""


class Framework(ABC):
    """A backend. The names ``rebuild`` and ``abort_communicator`` are those of FTLib's design."""

    name: str
    group: Group | None = None
    """The newest group."""

    @property
    def replaced(self) -> int:
        """Processes of its own that ended or hung though nobody had asked them to, and in whose place there is another one."""
        return 0

    @property
    def family(self) -> str:
        """One word. Members whose words differ cannot be in one job: the one that joins is refused. By default the name.

        Equal for backends whose groups can connect to each other, and which reduce alike, bit for bit.
        """
        return self.name

    @property
    def transports(self) -> tuple[str, ...]:
        """Names for metrics: of what ``Group.submit`` goes by, and of the accelerator if there is one."""
        return (self.name,)

    @abstractmethod
    def start(self, host: str) -> Mapping[str, str]:
        """Start this member's rendezvous service for the others on interface address ``host``.

        Returns the facts to advertise with the member, e.g. ``{"store": "127.0.0.1:41231"}``.
        """

    @abstractmethod
    def rebuild(self, spec: GroupSpec) -> Group:
        """Build the group and connect it to every rank before returning. GroupError on failure or timeout."""

    def prepare(self, spec: GroupSpec) -> None:  # noqa: B027 - a hint
        """Begin to build a group that ``rebuild`` may be asked for soon, or never; return at once.

        The group is not used before ``rebuild``. Only one is prepared at a time: ``prepare`` and ``rebuild`` drop a group
        prepared for another ``spec``, and so does ``cancel``.
        """

    def cancel(self, before: int = 0) -> None:  # noqa: B027 - best effort: a rebuild has a deadline anyway
        """Make a ``rebuild`` under way in another thread fail soon.

        With ``before``, only rebuilds for an earlier epoch fail, including those that begin later, until the next ``start``.
        """

    def abort_communicator(self) -> None:
        """Abort the newest group, if any."""
        if self.group is not None:
            self.group.abort()

    def allocate(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A row of ``count`` elements, not initialized, in memory that operations of this backend work on best."""
        return room(count, dtype)

    def place(self, tensor: torch.Tensor) -> str:
        """The device that a program's tensor is on; ``devices.HOST`` for one that operations may work on directly."""
        return place_of(tensor)

    def settled(self, epoch: int) -> None:  # noqa: B027
        """The view of ``epoch`` is active: free, in the background, what stopped groups of earlier epochs still hold.

        Until then peers may use it: all members of the view have stopped their operations once it is active.
        """

    def forget(self, spec: GroupSpec) -> None:  # noqa: B027
        """This member's part in the group of ``spec`` is over: what its store has of how the ranks met may go."""

    def on_fatal(self, report: Callable[[str], None]) -> None:  # noqa: B027
        """Call ``report`` with the reason, on any thread, if this process becomes unable to go on (in place of the last one).

        As where an operation of a stopped group never ends on the device. At once if that has happened already. It must
        return at once.
        """

    def metrics(self) -> Mapping[str, object]:
        """Figures of this backend for ``FTLib.metrics``, as plain values; empty if it has none. Any thread; must not wait."""
        return {}

    @abstractmethod
    def check(self, tensor: torch.Tensor) -> None:
        """ConfigError with a remedy if this backend cannot reduce such a tensor (device, dtype, layout)."""

    @abstractmethod
    def close(self) -> None:
        """Release everything. Idempotent."""
