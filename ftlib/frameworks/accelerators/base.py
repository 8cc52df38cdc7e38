"""The interface of an accelerator: a library as fast as NCCL, and as hard to trust, beside the Gloo group of a view.

Nothing here waits for peers. What may hang all the same, ``Communicator.stop`` and ``Communicator.free``, is called by
``ManagedCommunicator`` alone, with a deadline.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch

from ftlib.common.devices import device_at, place_of
from ftlib.errors import GroupError
from ftlib.frameworks.base import GroupSpec, Operation


class NotYetError(GroupError):
    """There is no accelerator here at the moment, but there will be one: see ``Accelerator.await_facts``."""


class Ticket(ABC):
    """Operations that were launched together."""

    @abstractmethod
    def query(self) -> bool:
        """True once the device says that all of them have ended. Never blocks.

        It says nothing about success: operations that were stopped end, too, and leave garbage in their buffers. Raises the
        device's error, if it has one.
        """

    @abstractmethod
    def error(self) -> str:
        """The asynchronous error of their communicator that is known so far; empty if there is none. Never blocks."""


class Communicator(ABC):
    """The accelerator's part of one view's group. Any thread may call ``stop``; one at a time the other methods."""

    @property
    @abstractmethod
    def ready(self) -> bool:
        """True once it is built and has carried out a first operation, until it is stopped."""

    @property
    @abstractmethod
    def trouble(self) -> str:
        """Why it will never be ready, or has failed; empty if nothing is known against it."""

    @property
    def passing(self) -> bool:
        """True if another one, in another view, may well become ready: that was lost in which this one was built."""
        return False

    @property
    @abstractmethod
    def idle(self) -> bool:
        """True if nothing that was launched is still to run, or running, on the device. Never blocks, never raises."""

    @abstractmethod
    def launch(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Ticket:
        """Enqueue the operations on the device, in this order, and return without waiting for peers or for their end.

        When it returns they have been launched: what the caller enqueues after that runs after them. GroupError if it is
        stopped, not ready, or the launch fails; if it fails in the middle, a ticket that tells the error. ``after``: called
        once they are launched, with their stream as the current one; what it enqueues belongs to the ticket.
        """

    @abstractmethod
    def stop(self) -> None:
        """End all operations within milliseconds, without the peers; nothing is freed. No more can be launched. Idempotent.

        The operations may seem to have succeeded, with garbage in their buffers. It ends a start that is under way.
        Returns when they have ended; may hang.
        """

    @abstractmethod
    def free(self) -> None:
        """Release everything. Only after ``stop`` has returned, and when no peer uses this member's memory. Once. May hang."""


class Accelerator(ABC):
    """One accelerator library; lives as long as the process."""

    name: str
    """Short, as in ``metrics``: "nccl"."""
    launches_at_once = True
    """False if ``Communicator.launch`` waits until the device has done what was enqueued before."""

    @abstractmethod
    def start(self, host: str) -> None:
        """Prepare for use on interface address ``host``; again for each lifetime. Any error means: no accelerator here."""

    @abstractmethod
    def facts(self, spec: GroupSpec) -> Mapping[str, str]:
        """What the other ranks of this view must know to start with this one, e.g. an id (of rank 0), a device, a version.

        Called on the thread that builds the Gloo group: must return within milliseconds. NotYetError if it is worth a new view
        to ask again.
        """

    def await_facts(self, seconds: float) -> bool:  # noqa: ARG002
        """After a NotYetError: wait until there will be facts, ``seconds`` at most; true if there will."""
        return False

    @abstractmethod
    def begin(self, spec: GroupSpec, facts: Sequence[Mapping[str, str]], decided: Callable[[], None]) -> Communicator:
        """Begin to build a communicator beside the training; return at once.

        NotYetError as with ``facts``. ``facts``: those of all ranks, in rank order. ``decided``: called once, on any thread,
        when the communicator has become ready or has met trouble; not needed after ``stop``.
        """

    def place(self, tensor: torch.Tensor) -> str:
        """The device that a program's tensor is on (see ``Framework``)."""
        return place_of(tensor)

    def allocate_at(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Group``. What it returns may be freed while operations on it are under way."""
        return device_at(place).empty(count, dtype)

    @abstractmethod
    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether it can reduce such a tensor (device, dtype, layout)."""

    @abstractmethod
    def close(self) -> None:
        """Release what is not part of a communicator. Idempotent."""
