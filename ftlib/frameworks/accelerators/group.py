"""A Gloo group with a communicator of an accelerator for its large buckets.

Every operation of ``Group`` goes by Gloo, which can be aborted in milliseconds and needs no trust. ``submit_bulk`` goes by the
communicator, once all members have said that theirs works. An abort only stops the communicator: what it holds is freed when
the next view is active (see ``HybridFramework``), as peers may use it until then.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence

import torch

from ftlib.errors import GroupError
from ftlib.frameworks.base import Group, Operation, OperationKind, Work
from ftlib.frameworks.gloo_group import GlooGroup
from ftlib.frameworks.gloo_work import FailedWork

from .base import Accelerator, Ticket
from .managed import ManagedCommunicator
from .work import AcceleratedWork, AcceleratorStart


class _State(enum.Enum):
    OPEN = "open"
    ABORTED = "aborted"


class HybridGroup(Group):
    """The group of one view. Collectives: one thread at a time, the same ones in the same order at all ranks."""

    def __init__(self, gloo: GlooGroup, communicator: ManagedCommunicator | None, accelerator: Accelerator) -> None:
        """``communicator``: None for a single member, which has nobody to talk to."""
        self.rank, self.size = gloo.rank, gloo.size
        self.gloo = gloo
        self._communicator = communicator
        self._accelerator = accelerator
        self._lock = threading.Lock()
        self._state = _State.OPEN
        """Guarded by ``_lock``: an operation counts as successful only while it is OPEN."""
        self._renewal = ""
        self._worked = False
        """True once the accelerator has carried operations."""

    def __repr__(self) -> str:
        accelerator = "none" if self._communicator is None else self._communicator.summary
        return f"<HybridGroup rank {self.rank} of {self.size} {self._state.value}, accelerator {accelerator}>"

    @property
    def accelerated(self) -> bool:
        """See ``Group``."""
        return self._state is _State.OPEN and self._communicator is not None and self._communicator.usable

    @property
    def trouble(self) -> str:
        """Why this member's communicator will never be ready, or has failed; empty if nothing is known against it."""
        return "" if self._communicator is None else self._communicator.trouble

    @property
    def aborted(self) -> bool:
        """True once an abort has begun, or the communicator was given up: what ends from now on may hold garbage."""
        return self._state is not _State.OPEN or self._communicator is None or self._communicator.stopped

    def submit(self, operation: Operation) -> Work:
        """Begin ``operation`` by Gloo. A reduction fails where the group is to be built anew (see ``renew``)."""
        if self._renewal and operation.kind is OperationKind.ALLREDUCE:
            return FailedWork(GroupError(f"rank {self.rank} of {self.size} wants a new view: {self._renewal}", (self.rank,)))
        return self.gloo.submit(operation)

    def renew(self, why: str) -> None:
        """Have the next call ask for a new view of the same members, as this one has no accelerator, and the next one will."""
        self._renewal = why

    @property
    def launches_at_once(self) -> bool:
        """See ``Group``."""
        return self._accelerator.launches_at_once

    def takes(self, tensor: torch.Tensor) -> bool:
        """See ``Group``."""
        return self._accelerator.takes(tensor)

    def allocate_at(self, place: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """See ``Group``."""
        return self._accelerator.allocate_at(place, count, dtype)

    def accelerator_start(self, seconds: float) -> Work | None:
        """See ``Group``."""
        communicator = self._communicator
        if communicator is None or self.aborted or not communicator.may_start_within(seconds):
            return None
        return AcceleratorStart(communicator, seconds)

    def submit_bulk(self, operations: Sequence[Operation], after: Callable[[], None] | None = None) -> Work:
        """See ``Group``."""
        communicator = self._communicator
        if communicator is None or self.aborted:
            return FailedWork(GroupError(f"the group of rank {self.rank} is {self._state.value}, or has no accelerator"))
        try:
            return AcceleratedWork(self, communicator.launch(operations, after))
        except GroupError as error:
            return FailedWork(error.afresh())

    def failure(self, ticket: Ticket) -> GroupError | None:
        """Why operations that the device calls ended have failed; None if they have succeeded.

        Asked under the lock that an abort takes first: an operation that was seen to end before that has ended by itself.
        """
        with self._lock:
            if self.aborted:
                return GroupError(f"rank {self.rank} of {self.size}: the group was aborted; its operations hold no result")
            error = ticket.error()
        if error:
            return self.blame(error)
        self._worked = True
        return None

    def blame(self, error: str) -> GroupError:
        """The error to report if the library has reported one. It is nobody else's fault unless a connection has broken.

        Then the next view need not wait for the proof of a death. But what has never worked is not built again without a pause.
        """
        own = self._worked and self.broken() is None
        return GroupError(f"rank {self.rank} of {self.size}: the accelerator failed: {error}", (self.rank,) if own else ())

    def broken(self) -> GroupError | None:
        """See ``GlooGroup``: a peer's death shows there, while the device may say nothing for ever."""
        return self.gloo.broken()

    def abort(self) -> None:
        """Cut Gloo's connections and stop the communicator. Returns when its operations have ended, in 0.1 s at most."""
        with self._lock:
            self._state = _State.ABORTED
        self.gloo.abort()
        if self._communicator is not None:
            self._communicator.stop()

    def close(self) -> None:
        """Abort, and destroy Gloo's part in the background. What the communicator holds is the framework's to free."""
        self.abort()
        self.gloo.close()
